#!/usr/bin/env bash
# SReT, Table 2: slices of attention, on SReT-TL. A row's name says the slices of the three stages in a block's first
# run, behind "then" those in its second; 1 attends globally, and slices of a second run are of permuted tokens.
#
#   recipes/sret/table2.sh ROW|all|list [options of train_image.py]
#
# SCALE, PRECISION, MICRO_BATCH, RESULTS as in recipes/lib/images.sh; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in
# recipes/common.sh; the settings of scale paper are in recipes/sret/lib/images.sh
#
# The paper's own list of rows is not at hand: see recipes/sret/notes.md. Results are those of the published code's
# page.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"
source "$(dirname "$0")/lib/images.sh"

TABLE="SReT 2"

row_global() { pyramid sret_tl_global 5.0M 76.8 "$@"; }
row_8_4_1_then_2_1_1() { pyramid sret_tl 5.0M - "$@"; }
row_8_4_1_then_1_1_1() { pyramid sret_tl 5.0M - "groups=((8,1),(4,1),(1,1))" "$@"; }
row_16_14_1_then_1_1_1() {
    SMALLER=("groups=((16,1),(8,1),(1,1))") # of 64 and 16 tokens
    pyramid sret_tl 5.0M 76.6 "groups=((16,1),(14,1),(1,1))" "$@"
}

table "$@"
