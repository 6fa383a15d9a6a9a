#!/usr/bin/env bash
# RingFormer, FLOPs of the vision models of Table 3, counted; nothing is trained, and all scales are the same.
#
#   recipes/ringformer/flops.sh ROW|all|list
#
# SCALE, RESULTS as in recipes/lib/images.sh; OUT, DRY_RUN as in recipes/common.sh
#
# Three counts of one image: "GFLOPs as published" is the paper's rule (fvcore, one for a multiplication with its
# addition, and added rules for sums and GELU) on the published form, which multiplies the two factors of every level
# signal out to 768 x 768 and is counted as if it applied the product to one token of 197: 17.64 and 19.03. "GFLOPs" is
# the same rule on the form computed here, factor after factor. "GMAC" leaves out the added rules.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"

TABLE="RingFormer FLOPs"
COSTS=(gflops_published gflops gmac)

row_vit() { image_cost plain_vit 86.42M 17.64 "$@"; }
row_owf() { image_cost owf_vit 34.45M 17.64 "$@"; }
row_uit() { image_cost uit 8.45M 17.64 "$@"; }
row_ringformer() { image_cost ringformer_vit 12.02M 19.03 "$@"; }

table "$@"
