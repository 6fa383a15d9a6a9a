#!/usr/bin/env bash
# SReT, section 5.5: recursion and residual coefficients (LRC) in all-MLP models, Mixer-S/16 and Mixer-B/16.
#
#   recipes/sret/mlp.sh ROW|all|list [options of train_image.py]
#
# SCALE, PRECISION, MICRO_BATCH, RESULTS as in recipes/lib/images.sh; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in
# recipes/common.sh; the settings of scale paper are in recipes/sret/lib/images.sh
#
# The paper does not say which Mixer; see timm_plugin/recursive_mixer.py for what is assumed.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"
source "$(dirname "$0")/lib/images.sh"

TABLE="SReT 5.5"
SMALL_DIVISOR=4

row_s16() { image recursive_mixer_s16 - - loops=1 lrc=False "$@"; }
row_s16_recursion() { image recursive_mixer_s16 - - lrc=False "$@"; }
row_s16_recursion_lrc() { image recursive_mixer_s16 - - "$@"; }
row_b16() { image recursive_mixer_b16 - - loops=1 lrc=False "$@"; }
row_b16_recursion() { image recursive_mixer_b16 - - lrc=False "$@"; }
row_b16_recursion_lrc() { image recursive_mixer_b16 - - "$@"; }

table "$@"
