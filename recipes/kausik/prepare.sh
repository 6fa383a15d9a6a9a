#!/usr/bin/env bash
# Prepares tiny Shakespeare as characters: download, split at 90 % as nanoGPT does, binarize for fairseq.
# DATA_ROOT  folder with shakespeare/input.txt; without it the file is downloaded from its repository
# Writes $OUT/kausik/{raw,characters}; finished stages are skipped.
source "$(dirname "$0")/../data/tools.sh"

URL=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
RAW=$OUT/kausik/raw
BIN=$OUT/kausik/characters

corpus() {
    obtain shakespeare/input.txt "$URL" "$RAW/input.txt"
    expect "$RAW/input.txt" 1115394 characters of_file "$RAW/input.txt" wc -c
}

parts() {
    run python "$ROOT/recipes/kausik/characters.py" "$RAW/input.txt" "$RAW"
}

binarization() {
    binarize "$BIN" --only-source --workers 1 --trainpref "$RAW/train.chars" --validpref "$RAW/valid.chars,$RAW/valid1.chars"
}

need fairseq-preprocess
stages "$RAW" corpus parts
stages "$BIN" binarization
