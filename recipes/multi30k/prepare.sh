#!/usr/bin/env bash
# Prepares a language pair of Multi30k (task 1): download, segment with joint BPE, binarize for fairseq.
# PAIR       two of cs, de, en and fr, in either order (default "de en")
# TEST       an additional test set: test_2017_flickr, test_2017_mscoco or test_2018_flickr (test_2016_flickr is always there)
# DATA_ROOT  folder with multi30k/{train,val,test_2016_flickr}.LANGUAGE.gz and the files of TEST; without it the files are
#            downloaded from the data set's repository
# PIECES     size of the joint vocabulary (default 6000)
# Writes $OUT/multi30k/{raw,pieces-PIECES,bin-PIECES}, or $OUT/multi30k/PAIR/... for pairs other than German and English;
# TEST is in bin-PIECES/TEST. Finished stages are skipped.
source "$(dirname "$0")/../data/common.sh"

PIECES=${PIECES:-6000} TEST=${TEST:-test_2016_flickr}
URL=https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw
SETS="train:29000 val:1014 test_2016_flickr:1000"
case $TEST in
test_2016_flickr) COUNT=1000 ;;
test_2017_flickr) COUNT=1000 ;;
test_2017_mscoco) COUNT=461 ;;
test_2018_flickr) COUNT=1071 ;;
*) fail "TEST=$TEST: must be test_2016_flickr, test_2017_flickr, test_2017_mscoco or test_2018_flickr" ;;
esac
read -r one other <<<"${PAIR:-de en}"
[[ $one =~ ^(cs|de|en|fr)$ && $other =~ ^(cs|de|en|fr)$ && $one != "$other" ]] ||
    fail "PAIR=$PAIR: must be two of cs, de, en, fr"
# Both directions share one folder: fairseq can read the set in either direction.
if [[ $one > $other ]]; then LANGUAGES=("$other" "$one"); else LANGUAGES=("$one" "$other"); fi
JOINT=$(IFS=- && echo "${LANGUAGES[*]}")
HERE=$OUT/multi30k
if [ "$JOINT" != de-en ]; then HERE+=/$JOINT; fi
RAW=$HERE/raw
CUT=$HERE/pieces-$PIECES
BIN=$HERE/bin-$PIECES

# fetched SET:COUNT: obtain and unpack the files of a set, which must have the published number of sentences.
fetched() {
    local set=${1%:*} language
    for language in "${LANGUAGES[@]}"; do
        obtain "multi30k/$set.$language.gz" "$URL/$set.$language.gz" "$RAW/$set.$language.gz"
        run_into "$RAW/$set.$language" gzip -dc "$RAW/$set.$language.gz"
        lines "$RAW/$set.$language" "${1#*:}"
    done
}

# cut_up SET: split the files of a set into pieces.
cut_up() {
    local language
    for language in "${LANGUAGES[@]}"; do
        run python "$ROOT/recipes/data/segment.py" encode "$CUT/bpe.model" "$RAW/$1.$language" "$CUT/$1.$language"
    done
}

corpus() {
    local set
    for set in $SETS; do fetched "$set"; done
}

segmentation() {
    local set
    run python "$ROOT/recipes/data/segment.py" train "$CUT/bpe.model" --pieces "$PIECES" "${LANGUAGES[@]/#/$RAW/train.}"
    for set in $SETS; do cut_up "${set%:*}"; done
}

binarization() {
    binarize "$BIN" --source-lang "${LANGUAGES[0]}" --target-lang "${LANGUAGES[1]}" --joined-dictionary --workers 2 \
        --trainpref "$CUT/train" --validpref "$CUT/val" --testpref "$CUT/test_2016_flickr"
}

another_set() {
    fetched "$TEST:$COUNT"
    cut_up "$TEST"
    binarize "$BIN/$TEST" --source-lang "${LANGUAGES[0]}" --target-lang "${LANGUAGES[1]}" --joined-dictionary \
        --srcdict "$BIN/dict.${LANGUAGES[0]}.txt" --testpref "$CUT/$TEST"
}

if [ "$DRY_RUN" != 1 ]; then mkdir -p "$RAW" "$CUT"; fi
need fairseq-preprocess
stage "$RAW" corpus
stage "$CUT" segmentation
stage "$BIN" binarization
if [ "$TEST" != test_2016_flickr ]; then stage "$BIN/$TEST" another_set; fi
