#!/usr/bin/env bash
# Takase & Kiyono, Figure 3: negative log-likelihood on newstest2013, the validation set, over updates, for rows of Table 1.
#   recipes/takase/figure3.sh [options of recipes/figures/curves.py]
source "$(dirname "$0")/../common.sh"

runs curves.py takase/table1 train.log vanilla universal sequence cycle cycle_rev
run python "$ROOT/recipes/figures/curves.py" "${RUNS[@]}" --x updates --y valid_nll_loss --nats --unit "nats a piece" \
    --output "$OUT/takase/figure3-$SCALE.svg" "$@"
