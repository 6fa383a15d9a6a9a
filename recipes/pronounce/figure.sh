#!/usr/bin/env bash
# Pronunciation: wrong words over stored bytes.
#   recipes/pronounce/figure.sh [options of recipes/figures/sizes.py]
# Nothing is trained: the picture shows the recorded runs of train.sh.
source "$(dirname "$0")/../common.sh"

run python "$ROOT/recipes/figures/sizes.py" --output "$OUT/pronounce/sizes.svg" "$@"
