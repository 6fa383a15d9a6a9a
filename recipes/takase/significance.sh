#!/usr/bin/env bash
# Takase & Kiyono, significance tests of Table 1: sacreBLEU's paired bootstrap of its rows against Universal on every test set.
#   recipes/takase/significance.sh [options of sacrebleu]
# Writes $OUT/takase/significance-SCALE-SET.json.
source "$(dirname "$0")/../common.sh"

runs sacrebleu takase/table1 generate universal sequence cycle cycle_rev sequence_18 cycle_18 cycle_rev_18
# The references of the test sets that recipes/records/kinds/translation.py decodes.
declare -A REFERENCE
if [ "$SCALE" = paper ]; then
    for year in {0..6}; do REFERENCE[newstest201$year]=$OUT/data/wmt16_en_de/raw/test${year#0}.de; done
elif [ "$SCALE" = smoke ] && [ ! -d "${DATA_ROOT:-/nonexistent}/multi30k" ]; then
    REFERENCE[test]=$OUT/data/smoke/raw/test.phonemes
else
    REFERENCE[test]=$OUT/multi30k/raw/test_2016_flickr.en
fi

SYSTEMS=("${RUNS[@]#*=}")
for set in "${!REFERENCE[@]}"; do
    run_into "$OUT/takase/significance-$SCALE-$set.json" sacrebleu "${REFERENCE[$set]}" -i "${SYSTEMS[@]/%/-$set.txt}" \
        -m bleu --paired-bs --tokenize 13a --format json "$@"
done
