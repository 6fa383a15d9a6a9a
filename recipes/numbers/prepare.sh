#!/usr/bin/env bash
# Prepares number words, English to German: generate with num2words, segment with a joint vocabulary, binarize for fairseq.
# SCALE  demo (default) or smoke, see run.sh
# Writes $OUT/numbers/$SCALE; finished stages are skipped.
source "$(dirname "$0")/../data/tools.sh"

SCALE=${SCALE:-demo}
case $SCALE in
smoke) LIMIT=1000 TRAIN=800 HELD=100 PIECES=60 ;;
demo) LIMIT=10000 TRAIN=8000 HELD=1000 PIECES=120 ;;
*) fail "SCALE=$SCALE: must be demo or smoke" ;;
esac
DATA=$OUT/numbers/$SCALE

corpus() {
    run python "$ROOT/recipes/numbers/data.py" "$DATA" --limit $LIMIT --train $TRAIN --valid $HELD --test $HELD
}

# With at most 9 characters, pieces are the natural parts of the words: einund zwanzig tausend drei hundert zwölf.
segmentation() {
    local file
    run python "$STEPS/segment.py" train "$DATA/pieces.model" --pieces $PIECES --longest 9 --kind unigram "$DATA"/train.{en,de}
    for file in {train,valid,test}.{en,de}; do
        run python "$STEPS/segment.py" encode "$DATA/pieces.model" "$DATA/$file" "$DATA/${file/./.pieces.}"
    done
}

binarization() {
    binarize_sets "$DATA/bin" "$DATA/*.pieces" --source-lang en --target-lang de --joined-dictionary
}

need fairseq-preprocess
stages "$DATA" corpus segmentation binarization
