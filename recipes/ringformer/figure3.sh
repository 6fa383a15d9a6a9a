#!/usr/bin/env bash
# RingFormer, Figure 3: mean attention distance of every head, pass by pass, of the models of Table 2.
#
#   recipes/ringformer/figure3.sh [options of recipes/figures/attention_distance.py]
#
# SCALE smoke (default), small, paper: of the rows, which are trained first unless they have been; SEED, OUT, DRY_RUN, THREADS
# as in recipes/common.sh, DATA_ROOT as in table2.sh. The picture and its numbers go to $OUT/ringformer.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"

SCALE=${SCALE:-smoke} LABEL=$(SCALE=${SCALE:-smoke} image_scale)
ROWS="vit uit ringformer"
trained ringformer/table2 $ROWS
labelled ringformer/table2 last.pth.tar $ROWS
run python "$ROOT/recipes/figures/attention_distance.py" "${RUNS[@]}" --output "$OUT/ringformer/distance-$SCALE.svg" "$@"
