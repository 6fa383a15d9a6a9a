#!/usr/bin/env bash
# SReT, Figure 9: loss landscape of DeiT-108, SReT-108 and SReT-108 trained at two depths, along five lines and in a plane.
#   recipes/sret/figure9.sh [options of recipes/figures/landscape.py]
source "$(dirname "$0")/../common.sh"

SCALE=${SCALE:-smoke}
ROWS="deit_108 sret_108 sret_108_mixed"
runs sret/mixed_depth last.pth.tar $ROWS
draw() { run python "$ROOT/recipes/figures/landscape.py" "${RUNS[@]}" "$@"; }
# First, because a plane takes fewer options.
draw --plane --output "$OUT/sret/landscape-plane-$SCALE.svg" "$@"
draw --directions 5 --output "$OUT/sret/landscape-$SCALE.svg" "$@"
