#!/usr/bin/env bash
# SReT, Figure 6 (and 2): the learnable residual coefficients over training.
#
#   recipes/sret/figure6.sh [options of recipes/figures/coefficients.py]
#
# of sret_t (a row of Table 5), and of the translation model with projections. SCALE smoke (default), small, paper: of the
# rows, which are trained first unless they have been; SEED, OUT, DRY_RUN, THREADS as in recipes/common.sh, DATA_ROOT as in
# the tables' scripts. The pictures and their numbers go to $OUT/sret.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"

SCALE=${SCALE:-smoke}
trained sret/table5 t
trained sret/translation iwslt
LABEL=$(image_scale)
run python "$ROOT/recipes/figures/coefficients.py" "$OUT/sret/table5/$LABEL/t/s$SEED/summary.csv" \
    --output "$OUT/sret/coefficients-images-$SCALE.svg" "$@"
run python "$ROOT/recipes/figures/coefficients.py" "$OUT/sret/translation/$SCALE/iwslt/s$SEED/train.log" \
    --output "$OUT/sret/coefficients-translation-$SCALE.svg" "$@"
