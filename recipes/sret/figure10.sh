#!/usr/bin/env bash
# SReT, Figure 10: response maps of images in each stage and pass of DeiT-Tiny and SReT-T.
#   recipes/sret/figure10.sh [options of recipes/figures/responses.py]
source "$(dirname "$0")/../common.sh"

draw() { run python "$ROOT/recipes/figures/responses.py" "${RUNS[0]#*=}" "$@"; }

runs responses.py sret/table1 last.pth.tar loops_1
draw --output "$OUT/sret/responses-deit-$SCALE.svg" "$@"

runs responses.py sret/table5 last.pth.tar t
draw --output "$OUT/sret/responses-sret-$SCALE.svg" "$@"
