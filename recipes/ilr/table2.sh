#!/usr/bin/env bash
# Intra-Layer Recurrence, Table 2: floating-point operations of training each reuse map, counted; nothing is trained.
#
#   recipes/ilr/table2.sh [flags of the model]
#
# At the paper's settings, 7,629 updates of 64 texts of 1,024 pieces (500M): two for each multiplication with its addition in
# every matrix product of forward and backward pass. The paper's 4.13e15 for the small baseline follows from no rule that it
# states. OUT, DRY_RUN as in recipes/common.sh. The picture and its numbers go to $OUT/ilr.
source "$(dirname "$0")/../common.sh"

if [ "$DRY_RUN" != 1 ]; then mkdir -p "$OUT/ilr"; fi
run python "$ROOT/recipes/figures/training_flops.py" --symbols 1024 --text 1024 --texts 64 --updates 7629 --vary reuse-map 1,1,1,1 2,1,1,1 \
    1,2,1,1 1,1,2,1 1,1,1,2 1,1,2,4 1,2,2,3 2,2,2,2 3,2,2,1 4,2,1,1 --output "$OUT/ilr/training-flops.svg" -- \
    --arch ilr_small "$@"
