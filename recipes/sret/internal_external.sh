#!/usr/bin/env bash
# SReT, Figure 4: internal recursion (each block runs several times in succession, 0 0 1 1 2 2) against external (the
# whole stack does, 0 1 2 0 1 2), on DeiT-Tiny.
#
#   recipes/sret/internal_external.sh ROW|all|list [options of train_image.py]
#
# SCALE, PRECISION, MICRO_BATCH, RESULTS as in recipes/lib/images.sh; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in
# recipes/common.sh; the settings of scale paper are in recipes/sret/lib/images.sh
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"
source "$(dirname "$0")/lib/images.sh"

TABLE="SReT Figure 4"

row_internal_2() { image recursive_deit_tiny 5.7M - loops=2 loop_order=internal "$@"; }
row_external_2() { image recursive_deit_tiny 5.7M - loops=2 loop_order=external "$@"; }
row_internal_3() { image recursive_deit_tiny 5.7M - loops=3 loop_order=internal "$@"; }
row_external_3() { image recursive_deit_tiny 5.7M - loops=3 loop_order=external "$@"; }

table "$@"
