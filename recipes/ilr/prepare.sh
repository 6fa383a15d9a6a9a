#!/usr/bin/env bash
# Prepares War and Peace: download, split into training, validation and test text, segment with 1,024 BPE symbols, binarize.
# DATA_ROOT  folder with war_and_peace/2600-0.txt; without it the book is downloaded from Project Gutenberg
# Writes $OUT/ilr/{raw,bin}; finished stages are skipped.
source "$(dirname "$0")/../data/tools.sh"

URL=https://www.gutenberg.org/files/2600/2600-0.txt
RAW=$OUT/ilr/raw
BIN=$OUT/ilr/bin
# Three of sentencepiece's pieces are its own special symbols; fairseq's dictionary adds four to the others: 1,024 in all.
PIECES=1023

book() {
    obtain war_and_peace/2600-0.txt "$URL" "$RAW/book.txt"
    run python "$ROOT/recipes/ilr/book.py" "$RAW/book.txt" "$RAW"
}

segmentation() {
    local set
    run python "$STEPS/segment.py" train "$RAW/bpe.model" --pieces $PIECES "$RAW/train.txt"
    for set in train valid test; do
        run python "$STEPS/segment.py" encode "$RAW/bpe.model" "$RAW/$set.txt" "$RAW/$set.pieces"
    done
}

binarization() { binarize_sets "$BIN" "$RAW/*.pieces" --only-source --workers 1; }

need fairseq-preprocess
stages "$RAW" book segmentation
stages "$BIN" binarization
