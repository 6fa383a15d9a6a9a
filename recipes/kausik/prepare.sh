#!/usr/bin/env bash
# Prepares tiny Shakespeare as characters: download, split at 90 % as nanoGPT does, binarize for fairseq.
# DATA_ROOT  folder with shakespeare/input.txt; without it the file is downloaded from its repository
# Writes $OUT/kausik/{raw,characters}; finished stages are skipped.
source "$(dirname "$0")/../data/tools.sh"

URL=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
RAW=$OUT/kausik/raw
BIN=$OUT/kausik/characters
CHARACTERS=1115394

corpus() {
    obtain shakespeare/input.txt "$URL" "$RAW/input.txt"
    if [ "$DRY_RUN" = 1 ]; then return; fi
    local found
    found=$(wc -c <"$RAW/input.txt")
    [ "$VERIFY" != 1 ] || [ "$found" -eq $CHARACTERS ] ||
        fail "input.txt: $found characters, but the corpus has $CHARACTERS (VERIFY=0 accepts it)"
}

parts() {
    run python "$ROOT/recipes/kausik/characters.py" "$RAW/input.txt" "$RAW"
}

binarization() {
    binarize "$BIN" --only-source --workers 1 --trainpref "$RAW/train.chars" --validpref "$RAW/valid.chars,$RAW/valid1.chars"
}

if [ "$DRY_RUN" != 1 ]; then mkdir -p "$RAW"; fi
need fairseq-preprocess
stage "$RAW" corpus
stage "$RAW" parts
stage "$BIN" binarization
