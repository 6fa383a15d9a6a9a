#!/usr/bin/env bash
# SReT, Table 1: naive recursion, DeiT-Tiny with each of its blocks run one to four times in succession.
#
#   recipes/sret/table1.sh ROW|all|list [options of train_image.py]
#
# SCALE, PRECISION, MICRO_BATCH, RESULTS as in recipes/lib/images.sh; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in
# recipes/common.sh; the settings of scale paper are in recipes/sret/lib/images.sh
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"
source "$(dirname "$0")/lib/images.sh"

TABLE="SReT 1"

row_loops_1() { image recursive_deit_tiny 5.7M - loops=1 "$@"; }
row_loops_2() { image recursive_deit_tiny 5.7M - loops=2 "$@"; }
row_loops_3() { image recursive_deit_tiny 5.7M - loops=3 "$@"; }
row_loops_4() { image recursive_deit_tiny 5.7M - loops=4 "$@"; }

table "$@"
