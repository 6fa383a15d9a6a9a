#!/usr/bin/env bash
# SReT, Table 4: operations of one image, images a second on the device at hand, and their ratio to DeiT-Tiny's, measured
# in turn; nothing is trained, and all scales are the same.
#
#   recipes/sret/table4.sh ROW|all|list
#
# SCALE, RESULTS as in recipes/lib/images.sh; OUT, DRY_RUN, THREADS as in recipes/common.sh
# THROUGHPUT  images a batch (default 16)
#
# The paper's own list of rows is not at hand: see recipes/sret/notes.md. A row _global is without slices.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"

TABLE="SReT 4"
COSTS=(gmac images_per_s speed_over_deit)
THROUGHPUT=${THROUGHPUT:-16}

row_deit() { image_cost recursive_deit_tiny 5.7M - loops=1 "$@"; }
row_deit_recursion() { image_cost recursive_deit_tiny 5.7M - loops=2 "$@"; }
row_ext() { image_cost sret_ext 4.0M 0.7 "$@"; }
row_t() { image_cost sret_t 4.8M 1.1 "$@"; }
row_t_global() { image_cost sret_t_global 4.8M 1.4 "$@"; }
row_tl() { image_cost sret_tl 5.0M 1.2 "$@"; }
row_tl_global() { image_cost sret_tl_global 5.0M 1.4 "$@"; }
row_s() { image_cost sret_s 20.9M 4.2 "$@"; }
row_s_global() { image_cost sret_s_global 20.9M 4.7 "$@"; }

table "$@"
