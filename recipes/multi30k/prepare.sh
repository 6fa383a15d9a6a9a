#!/usr/bin/env bash
# Prepares Multi30k (task 1), German and English: download, segment with joint BPE, binarize for fairseq.
# DATA_ROOT  folder with multi30k/{train,val,test_2016_flickr}.LANGUAGE.gz; without it the files are downloaded from the data
#            set's repository
# PIECES     size of the joint vocabulary (default 6000)
# Writes $OUT/multi30k/{raw,pieces-PIECES,bin-PIECES}. Finished stages are skipped.
source "$(dirname "$0")/../data/tools.sh"

PIECES=${PIECES:-6000}
URL=https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw
RAW=$OUT/multi30k/raw
CUT=$OUT/multi30k/pieces-$PIECES
BIN=$OUT/multi30k/bin-$PIECES

corpus() {
    local set language
    for set in train:29000 val:1014 test_2016_flickr:1000; do
        for language in de en; do
            obtain "multi30k/${set%:*}.$language.gz" "$URL/${set%:*}.$language.gz" "$RAW/${set%:*}.$language.gz"
            run_into "$RAW/${set%:*}.$language" gzip -dc "$RAW/${set%:*}.$language.gz"
            lines "$RAW/${set%:*}.$language" "${set#*:}"
        done
    done
}

segmentation() {
    local file
    run python "$STEPS/segment.py" train "$CUT/bpe.model" --pieces "$PIECES" "$RAW"/train.{de,en}
    for file in {train,val,test_2016_flickr}.{de,en}; do
        run python "$STEPS/segment.py" encode "$CUT/bpe.model" "$RAW/$file" "$CUT/$file"
    done
}

binarization() {
    binarize "$BIN" --source-lang de --target-lang en --joined-dictionary --workers 2 \
        --trainpref "$CUT/train" --validpref "$CUT/val" --testpref "$CUT/test_2016_flickr"
}

need fairseq-preprocess
stages "$RAW" corpus
stages "$CUT" segmentation
stages "$BIN" binarization
