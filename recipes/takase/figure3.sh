#!/usr/bin/env bash
# Takase & Kiyono, Figure 3: validation loss of rows of Table 1, over hours and over updates.
#
#   recipes/takase/figure3.sh [options of recipes/figures/curves.py]
#
# SCALE smoke (default), small, paper: of the rows, which are trained first unless they have been; SEED, OUT, DRY_RUN, THREADS
# as in recipes/common.sh, DATA_ROOT as in table1.sh. The pictures and their numbers go to $OUT/takase.
source "$(dirname "$0")/../common.sh"

SCALE=${SCALE:-smoke}
ROWS="vanilla universal sequence cycle cycle_rev"
trained takase/table1 $ROWS
labelled takase/table1 train.log $ROWS
for axis in hours updates; do
    run python "$ROOT/recipes/figures/curves.py" "${RUNS[@]}" --x $axis --y valid_nll_loss --nats --unit "nats a piece" \
        --output "$OUT/takase/curves-$SCALE-$axis.svg" "$@"
done
