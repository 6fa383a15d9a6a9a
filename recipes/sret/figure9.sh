#!/usr/bin/env bash
# SReT, Figure 9: the loss around deit_108, sret_108 and its mixed-depth pair, along one direction and in a plane.
#
#   recipes/sret/figure9.sh [options of recipes/figures/landscape.py]
#
# SCALE smoke (default), small, paper: of the rows of mixed_depth.sh, which are trained first unless they have been; SEED,
# OUT, DRY_RUN, THREADS as in recipes/common.sh, DATA_ROOT as there. The pictures and their numbers go to $OUT/sret.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"

SCALE=${SCALE:-smoke} LABEL=$(SCALE=${SCALE:-smoke} image_scale)
ROWS="deit_108 sret_108 sret_108_mixed"
trained sret/mixed_depth $ROWS
labelled sret/mixed_depth last.pth.tar $ROWS
run python "$ROOT/recipes/figures/landscape.py" "${RUNS[@]}" --output "$OUT/sret/landscape-$SCALE.svg" "$@"
run python "$ROOT/recipes/figures/landscape.py" "${RUNS[@]}" --plane --output "$OUT/sret/landscape-plane-$SCALE.svg" "$@"
