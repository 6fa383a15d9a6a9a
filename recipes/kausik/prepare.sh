#!/usr/bin/env bash
# Tiny Shakespeare by characters: fetch, cut at 90 % as nanoGPT does, binarize for fairseq.
# DATA_ROOT  a folder that holds shakespeare/input.txt; without it the file is downloaded from its own repository.
# Writes $OUT/kausik/{raw,bin}; what is done already is skipped.
source "$(dirname "$0")/../common.sh"

URL=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
RAW=$OUT/kausik/raw
BIN=$OUT/kausik/bin
CHARACTERS=1115394

corpus() {
    if [ -n "${DATA_ROOT:-}" ]; then
        [ -f "$DATA_ROOT/shakespeare/input.txt" ] || fail "DATA_ROOT=$DATA_ROOT: holds no shakespeare/input.txt"
        run cp "$DATA_ROOT/shakespeare/input.txt" "$RAW/input.txt"
    else
        need curl
        run curl --fail --location --retry 3 --continue-at - --output "$RAW/input.txt" "$URL" ||
            fail "$URL: not reached; without a network, put the file in a folder and set DATA_ROOT (see the head of $0)"
    fi
    if [ "$DRY_RUN" = 1 ]; then return; fi
    local found
    found=$(wc -c <"$RAW/input.txt")
    [ "$found" -eq $CHARACTERS ] || fail "input.txt: $found characters, but the corpus has $CHARACTERS"
}

characters() {
    run python "$ROOT/recipes/kausik/characters.py" "$RAW/input.txt" "$RAW"
}

# The host refuses to write over a dictionary, so what an interrupted call left is removed.
binarization() {
    run rm -rf "$BIN"
    run fairseq-preprocess --user-dir "$ROOT/fairseq_plugin" --only-source --workers 1 --destdir "$BIN" \
        --trainpref "$RAW/train.chars" --validpref "$RAW/valid.chars"
}

if [ "$DRY_RUN" != 1 ]; then mkdir -p "$RAW"; fi
need fairseq-preprocess
stage "$RAW" corpus
stage "$RAW" characters
stage "$BIN" binarization
