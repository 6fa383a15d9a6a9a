#!/usr/bin/env bash
# SReT, Figure 9: loss landscape of DeiT-108, SReT-108 and SReT-108 trained at two depths.
#   recipes/sret/figure9.sh [options of recipes/figures/landscape.py]
source "$(dirname "$0")/../common.sh"

runs landscape.py sret/mixed_depth last.pth.tar deit_108 sret_108 sret_108_mixed
run python "$ROOT/recipes/figures/landscape.py" "${RUNS[@]}" --output "$OUT/sret/landscape-$SCALE.svg" "$@"
