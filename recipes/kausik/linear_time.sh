#!/usr/bin/env bash
# Kausik, abstract of both texts: time and memory of training and of reading over the length of the text, for one recurrent and
# one regular layer, as a picture and a table.
#   recipes/kausik/linear_time.sh [options of recipes/kausik/linear_time.py]
source "$(dirname "$0")/../common.sh"

run python "$ROOT/recipes/kausik/linear_time.py" --output "$OUT/kausik/linear-time.svg" "$@"
