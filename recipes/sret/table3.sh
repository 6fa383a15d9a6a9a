#!/usr/bin/env bash
# SReT, Table 3: what each part gives, from DeiT-Tiny to recursion with coefficients (LRC), projections (NLL), a
# convolutional stem and pooling in the place of the class token.
#
#   recipes/sret/table3.sh ROW|all|list [options of train_image.py]
#
# SCALE, PRECISION, MICRO_BATCH, RESULTS as in recipes/lib/images.sh; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in
# recipes/common.sh; the settings of scale paper are in recipes/sret/lib/images.sh
#
# The paper's own list of rows is not at hand: see recipes/sret/notes.md.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"
source "$(dirname "$0")/lib/images.sh"

TABLE="SReT 3"
POOLED=(class_token=False global_pool=avg)

# A stem of 16 x 16 pixels a token gets images of 128 pixels where the others get 64, so that all have 64 tokens.
with_stem() {
    SMALLER=(patch_size=16 --img-size 128)
    image recursive_deit_tiny - - loops=2 lrc=True nll=True stem=conv "$@"
}

row_deit() { image recursive_deit_tiny 5.7M - loops=1 "$@"; }
row_recursion() { image recursive_deit_tiny 5.7M - loops=2 "$@"; }
row_lrc() { image recursive_deit_tiny - - loops=2 lrc=True "$@"; }
row_nll() { image recursive_deit_tiny - - loops=2 nll=True "$@"; }
row_lrc_nll() { image recursive_deit_tiny - - loops=2 lrc=True nll=True "$@"; }
row_lrc_nll_stem() { with_stem "$@"; }
row_lrc_nll_pooled() { image recursive_deit_tiny - - loops=2 lrc=True nll=True "${POOLED[@]}" "$@"; }
row_lrc_nll_stem_pooled() { with_stem "${POOLED[@]}" "$@"; }
row_sret() { pyramid sret_t 4.8M 76.0 "$@"; }
row_sret_no_lrc() { pyramid sret_t - - lrc=False "$@"; }
row_sret_no_nll() { pyramid sret_t - - nll_ratio=0 "$@"; }
row_sret_once() { pyramid sret_t - - loops=1 "groups=((8,),(4,),(1,))" "$@"; }
row_sret_3_loops() { pyramid sret_t - - loops=3 "groups=((8,2,2),(4,1,1),(1,1,1))" "$@"; }

table "$@"
