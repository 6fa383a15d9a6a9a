#!/usr/bin/env bash
# Prepares WikiText at word level: download and binarize.
# SET        103 (default): WikiText-103 for Takase & Kiyono's table; 2: the validation and test text of WikiText-2 for small
#            runs, with the first 90 % of the validation text for training and the rest for validation
# DATA_ROOT  folder with wikitext103/wiki.{train,valid,test}.tokens or wikitext2/{valid,test}.txt; without it the set is
#            downloaded
# Writes $OUT/takase/wikitext/{raw,bin}-$SET; finished stages are skipped.
source "$(dirname "$0")/../data/tools.sh"

SET=${SET:-103}
RAW=$OUT/takase/wikitext/raw-$SET
BIN=$OUT/takase/wikitext/bin-$SET
URL=https://wikitext.smerity.com/wikitext-$SET-v1.zip
MD5=([103]=9ddaacaf6af0710eda8c456decff7832) # torchtext's

# take NAME MEMBER FILE: copy DATA_ROOT/NAME to FILE, or without DATA_ROOT the archive's MEMBER.
take() {
    if [ -n "${DATA_ROOT:-}" ]; then
        [ "$DRY_RUN" = 1 ] || [ -f "$DATA_ROOT/$1" ] || fail "DATA_ROOT=$DATA_ROOT: holds no $1"
        run cp "$DATA_ROOT/$1" "$RAW/$3"
    else
        run_into "$RAW/$3" unzip -p "$RAW/set.zip" "$2"
    fi
}

corpus() {
    local name lines
    if [ -z "${DATA_ROOT:-}" ]; then
        need unzip
        download "$URL" "$RAW/set.zip" "wikitext$SET/*" "${MD5[$SET]:-}"
    fi
    if [ "$SET" = 103 ]; then
        for name in train valid test; do
            take "wikitext103/wiki.$name.tokens" "wikitext-103/wiki.$name.tokens" "$name.tokens"
        done
        return
    fi
    take wikitext2/valid.txt wikitext-2/wiki.valid.tokens all.tokens
    take wikitext2/test.txt wikitext-2/wiki.test.tokens test.tokens
    if [ "$DRY_RUN" != 1 ]; then lines=$(($(wc -l <"$RAW/all.tokens") * 9 / 10)); fi
    run_into "$RAW/train.tokens" head -n "${lines:-LINES}" "$RAW/all.tokens"
    run_into "$RAW/valid.tokens" tail -n "+$((${lines:-0} + 1))" "$RAW/all.tokens"
}

binarization() { binarize_sets "$BIN" "$RAW/*.tokens" --only-source --workers 2; }

case $SET in 2 | 103) ;; *) fail "SET=$SET: must be 2 or 103" ;; esac
need fairseq-preprocess
stages "$RAW" corpus
stages "$BIN" binarization
