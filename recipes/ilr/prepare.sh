#!/usr/bin/env bash
# War and Peace: fetch, cut into training, validation and test text, into BPE pieces of 1,024 symbols, binarize.
# DATA_ROOT  a folder that holds war_and_peace/2600-0.txt; without it the book comes from Project Gutenberg.
# CORPUS     another plain text in its place, paragraphs between empty lines
# Writes $OUT/ilr/{raw,bin}; what is done already is skipped.
source "$(dirname "$0")/../data/common.sh"

URL=https://www.gutenberg.org/files/2600/2600-0.txt
RAW=$OUT/ilr/raw
BIN=$OUT/ilr/bin
# Of sentencepiece's pieces three are marks of its own; to the others fairseq's dictionary adds four.
PIECES=1023

book() {
    if [ -n "${CORPUS:-}" ]; then
        [ -f "$CORPUS" ] || fail "CORPUS=$CORPUS: no such file"
        run ln -sfn "$(realpath "$CORPUS")" "$RAW/book.txt"
    else
        obtain war_and_peace/2600-0.txt "$URL" "$RAW/book.txt"
    fi
    run python "$ROOT/recipes/ilr/book.py" "$RAW/book.txt" "$RAW"
}

segmentation() {
    local set
    run python "$ROOT/recipes/data/segment.py" train "$RAW/bpe.model" --pieces $PIECES "$RAW/train.txt"
    for set in train valid test; do
        run python "$ROOT/recipes/data/segment.py" encode "$RAW/bpe.model" "$RAW/$set.txt" "$RAW/$set.pieces"
    done
}

binarization() { binarize_sets "$BIN" "$RAW/*.pieces" --only-source --workers 1; }

if [ "$DRY_RUN" != 1 ]; then mkdir -p "$RAW"; fi
need fairseq-preprocess
stage "$RAW" book
stage "$RAW" segmentation
stage "$BIN" binarization
