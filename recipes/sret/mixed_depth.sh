#!/usr/bin/env bash
# SReT, section 5.7 and Figure 9: models of 108 layers, and those that are trained at two depths at once.
#
#   recipes/sret/mixed_depth.sh ROW|all|list [options of train_image.py]
#
# SCALE, PRECISION, MICRO_BATCH, RESULTS as in recipes/lib/images.sh; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in
# recipes/common.sh; the settings of scale paper are in recipes/sret/lib/images.sh
#
# The paper gives no shapes but "13 to 15M" parameters; see timm_plugin/mixed_depth.py for what is assumed.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"
source "$(dirname "$0")/lib/images.sh"

TABLE="SReT 5.7"
SMALL_DIVISOR=2

row_deit_108() { image deit_108 - - "$@"; }
row_deit_108_mixed() { image deit_108_mixed - - "$@"; }
row_sret_108() { pyramid sret_108 - - "$@"; }
row_sret_108_mixed() { pyramid sret_108_mixed - - "$@"; }

table "$@"
