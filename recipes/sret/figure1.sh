#!/usr/bin/env bash
# SReT, Figure 1: accuracy over parameters and over operations, of the models of Table 5.
#
#   recipes/sret/figure1.sh [options of recipes/figures/accuracy.py]
#
# Nothing is trained: it draws what the paper prints, and beside it our runs of scale paper, if there are any. OUT, DRY_RUN
# as in recipes/common.sh. The picture and its numbers go to $OUT/sret.
source "$(dirname "$0")/../common.sh"

run python "$ROOT/recipes/figures/accuracy.py" --output "$OUT/sret/accuracy.svg" "$@"
