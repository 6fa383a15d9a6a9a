#!/usr/bin/env bash
# SReT, Figure 5: accuracy over epochs of (1) DeiT-Tiny with blocks run one to four times, (2, 3) SReT-T with projections of
# four widths.
#   recipes/sret/figure5.sh [options of recipes/figures/curves.py]
source "$(dirname "$0")/../common.sh"

draw() { run python "$ROOT/recipes/figures/curves.py" "${RUNS[@]}" --x epoch --y eval_top1 --unit "top-1 %" "$@"; }

runs curves.py sret/table1 summary.csv loops_1 loops_2 loops_3 loops_4
draw --output "$OUT/sret/loops-$SCALE.svg" "$@"

runs curves.py sret/nll_ratio summary.csv nll_0_5 nll_1 nll_2 nll_4
draw --output "$OUT/sret/nll-ratio-$SCALE.svg" "$@"
