#!/usr/bin/env bash
# Multi30k (task 1), German to English: fetch, cut into joint BPE pieces, binarize for fairseq.
# DATA_ROOT  a folder that holds multi30k/{train,val,test_2016_flickr}.{de,en}.gz; without it the files are downloaded
#            from the data set's own repository.
# PIECES     size of the joint vocabulary (default 6000)
# Writes $OUT/multi30k/{raw,pieces,bin-PIECES}; what is done already is skipped.
source "$(dirname "$0")/../data/common.sh"

PIECES=${PIECES:-6000}
URL=https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw
SETS="train:29000 val:1014 test_2016_flickr:1000"
RAW=$OUT/multi30k/raw
CUT=$OUT/multi30k/pieces-$PIECES
BIN=$OUT/multi30k/bin-$PIECES

# Every file of the corpus, and the count of its sentences against the published one.
corpus() {
    local set file
    for set in $SETS; do
        for file in "${set%:*}".{de,en}; do
            obtain "multi30k/$file.gz" "$URL/$file.gz" "$RAW/$file.gz"
            run_into "$RAW/$file" gzip -dc "$RAW/$file.gz"
            lines "$RAW/$file" "${set#*:}"
        done
    done
}

segmentation() {
    local set language
    run python "$ROOT/recipes/data/segment.py" train "$CUT/bpe.model" --pieces "$PIECES" "$RAW/train.de" "$RAW/train.en"
    for set in $SETS; do
        for language in de en; do
            run python "$ROOT/recipes/data/segment.py" encode "$CUT/bpe.model" "$RAW/${set%:*}.$language" "$CUT/${set%:*}.$language"
        done
    done
}

binarization() {
    binarize "$BIN" --source-lang de --target-lang en --joined-dictionary --workers 2 \
        --trainpref "$CUT/train" --validpref "$CUT/val" --testpref "$CUT/test_2016_flickr"
}

if [ "$DRY_RUN" != 1 ]; then mkdir -p "$RAW" "$CUT"; fi
need fairseq-preprocess
stage "$RAW" corpus
stage "$CUT" segmentation
stage "$BIN" binarization
