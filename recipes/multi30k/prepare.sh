#!/usr/bin/env bash
# Multi30k (task 1), German to English: fetch, cut into joint BPE pieces, binarize for fairseq.
# DATA_ROOT  a folder that holds multi30k/{train,val,test_2016_flickr}.{de,en}.gz; without it the files are downloaded
#            from the data set's own repository.
# PIECES     size of the joint vocabulary (default 6000)
# Writes $OUT/multi30k/{raw,pieces,bin-PIECES}; what is done already is skipped.
source "$(dirname "$0")/../common.sh"

PIECES=${PIECES:-6000}
URL=https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw
SETS="train:29000 val:1014 test_2016_flickr:1000"
RAW=$OUT/multi30k/raw
CUT=$OUT/multi30k/pieces-$PIECES
BIN=$OUT/multi30k/bin-$PIECES

# One file out of DATA_ROOT or from the public repository, the download resumed where it broke off.
fetch() {
    local name=$1
    if [ -n "${DATA_ROOT:-}" ]; then
        [ -f "$DATA_ROOT/multi30k/$name" ] || fail "DATA_ROOT=$DATA_ROOT: holds no multi30k/$name"
        gzip -dc "$DATA_ROOT/multi30k/$name" >"$RAW/${name%.gz}"
        return
    fi
    need curl
    run curl --fail --location --retry 3 --continue-at - --output "$RAW/$name" "$URL/$name" ||
        fail "$URL/$name: not reached; without a network, put the files in a folder and set DATA_ROOT (see the head of $0)"
    if [ "$DRY_RUN" != 1 ]; then gzip -dc "$RAW/$name" >"$RAW/${name%.gz}"; fi
}

# Every file of the corpus, and the count of its sentences against the published one.
corpus() {
    local set language lines
    for set in $SETS; do
        for language in de en; do
            if [ "$DRY_RUN" = 1 ] && [ -n "${DATA_ROOT:-}" ]; then continue; fi
            fetch "${set%:*}.$language.gz"
            if [ "$DRY_RUN" = 1 ]; then continue; fi
            lines=$(wc -l <"$RAW/${set%:*}.$language")
            [ "$lines" -eq "${set#*:}" ] || fail "${set%:*}.$language: $lines sentences, but the set has ${set#*:}"
            log "${set%:*}.$language: $lines sentences"
        done
    done
}

segmentation() {
    local set language
    run python "$TOOLS/segment.py" train "$CUT/bpe.model" --pieces "$PIECES" "$RAW/train.de" "$RAW/train.en"
    for set in $SETS; do
        for language in de en; do
            run python "$TOOLS/segment.py" encode "$CUT/bpe.model" "$RAW/${set%:*}.$language" "$CUT/${set%:*}.$language"
        done
    done
}

# The host refuses to write over a dictionary, so what an interrupted call left is removed.
binarization() {
    run rm -rf "$BIN"
    run fairseq-preprocess --user-dir "$ROOT/fairseq_plugin" \
        --source-lang de --target-lang en --joined-dictionary --workers 2 --destdir "$BIN" \
        --trainpref "$CUT/train" --validpref "$CUT/val" --testpref "$CUT/test_2016_flickr"
}

if [ "$DRY_RUN" != 1 ]; then mkdir -p "$RAW" "$CUT"; fi
need fairseq-preprocess
stage "$RAW" corpus
stage "$CUT" segmentation
stage "$BIN" binarization
