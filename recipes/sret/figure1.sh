#!/usr/bin/env bash
# SReT, Figure 1: accuracy over parameters and over operations for the models of Table 5.
#   recipes/sret/figure1.sh [options of recipes/figures/accuracy.py]
# Nothing is trained: the picture shows the printed results, and our runs of scale paper if there are any.
source "$(dirname "$0")/../common.sh"

run python "$ROOT/recipes/figures/accuracy.py" --output "$OUT/sret/accuracy.svg" "$@"
