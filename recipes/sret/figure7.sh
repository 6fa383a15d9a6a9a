#!/usr/bin/env bash
# SReT, Figure 7: validation loss of the translation models over training.
#
#   recipes/sret/figure7.sh [options of recipes/figures/curves.py]
#
# SCALE smoke (default), small, paper: of the rows of translation.sh, which are trained first unless they have been; SEED,
# OUT, DRY_RUN, THREADS as in recipes/common.sh, DATA_ROOT as there. The picture and its numbers go to $OUT/sret.
source "$(dirname "$0")/../common.sh"

SCALE=${SCALE:-smoke}
ROWS="iwslt_plain iwslt_no_nll iwslt"
trained sret/translation $ROWS
labelled sret/translation train.log $ROWS
run python "$ROOT/recipes/figures/curves.py" "${RUNS[@]}" --nats --unit "nats a piece" --y valid_nll_loss \
    --output "$OUT/sret/translation-$SCALE.svg" "$@"
