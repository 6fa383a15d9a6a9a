#!/usr/bin/env bash
# SReT, Figure 10: how strongly the places of an image respond, stage by stage and pass by pass.
#
#   recipes/sret/figure10.sh [options of recipes/figures/responses.py]
#
# of sret_t (a row of Table 5). SCALE smoke (default), small, paper: of the row, which is trained first unless it has been;
# SEED, OUT, DRY_RUN, THREADS as in recipes/common.sh, DATA_ROOT as in table5.sh. The picture and its numbers go to $OUT/sret.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"

SCALE=${SCALE:-smoke}
trained sret/table5 t
run python "$ROOT/recipes/figures/responses.py" "$OUT/sret/table5/$(image_scale)/t/s$SEED/last.pth.tar" \
    --output "$OUT/sret/responses-$SCALE.svg" "$@"
