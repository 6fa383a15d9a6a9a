#!/usr/bin/env bash
# Takase & Kiyono, significance tests of Table 4: paired bootstrap of word errors against Universal on every test set.
#   recipes/takase/significance4.sh [options of recipes/metrics/significance_speech.py]
# Writes $OUT/takase/significance4-SCALE-SET.json.
source "$(dirname "$0")/../common.sh"

SCALE=${SCALE:-smoke}
if [ "$SCALE" = paper ]; then SETS="dev-clean dev-other test-clean test-other"; else SETS=test; fi

runs takase/table4 "" universal vanilla sequence cycle cycle_rev
for set in $SETS; do
    run_into "$OUT/takase/significance4-$SCALE-$set.json" \
        python "$ROOT/recipes/metrics/significance_speech.py" "${RUNS[@]/%/$set.log}" "$@"
done
