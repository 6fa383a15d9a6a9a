#!/usr/bin/env bash
# SReT, Figure 6: (1) accuracy of the Mixers over epochs, (2) residual coefficients of the first block.
#   recipes/sret/figure6.sh [options of recipes/figures/coefficients.py]
source "$(dirname "$0")/../common.sh"

runs coefficients.py sret/mlp summary.csv s16 s16_recursion s16_recursion_lrc
run python "$ROOT/recipes/figures/curves.py" "${RUNS[@]}" --x epoch --y eval_top1 --unit "top-1 %" \
    --output "$OUT/sret/mixer-$SCALE.svg"

runs coefficients.py sret/table5 summary.csv t
run python "$ROOT/recipes/figures/coefficients.py" "${RUNS[0]#*=}" --output "$OUT/sret/coefficients-$SCALE.svg" "$@"
