#!/usr/bin/env bash
# Kausik, Figures 2a and 2b: validation loss of the rows of Table 2, over updates and over hours.
#
#   recipes/kausik/figure2.sh [options of recipes/figures/curves.py]
#
# SCALE smoke (default), small, paper: of the rows, which are trained first unless they have been; SEED, OUT, DRY_RUN, THREADS
# as in recipes/common.sh, DATA_ROOT as in table2.sh. The pictures and their numbers go to $OUT/kausik.
source "$(dirname "$0")/../common.sh"

SCALE=${SCALE:-smoke}
ROWS="regular_1 regular_6 recurrent_positions recurrent"
trained kausik/table2 $ROWS
labelled kausik/table2 train.log $ROWS
for axis in updates hours; do
    run python "$ROOT/recipes/figures/curves.py" "${RUNS[@]}" --x $axis --nats --unit "nats a character" \
        --title "tiny Shakespeare, scale $SCALE" --reference "nanoGPT, full budget=1.4697" \
        --output "$OUT/kausik/curves-$SCALE-$axis.svg" "$@"
done
