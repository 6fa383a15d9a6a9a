#!/usr/bin/env bash
# RingFormer, Table 3: ImageNet-1K.
#
#   recipes/ringformer/table3.sh ROW|all|list [options of train_image.py]
#
# SCALE, PRECISION, MICRO_BATCH, RESULTS as in recipes/lib/images.sh; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in
# recipes/common.sh
#
# Scale paper: rate 5e-4, 4,096 images an update (there 2 processes with 16 batches of 128), 50 epochs, of which 5 warm
# up, and TrivialAugmentWide. The paper's "3,128 warm-up steps" are ticks of a scheduler that ticks twice an update: 5
# epochs. A row _wide is the paper's scaled one. The rest is in recipes/ringformer/lib/images.sh.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"
source "$(dirname "$0")/lib/images.sh"

TABLE="RingFormer 3"
PAPER_DATA=imagenet PAPER_BATCH=4096
PAPER_FLAGS+=(--lr 5e-4 --epochs 50 --warmup-epochs 5 --aa trivial)

row_vit() { image plain_vit 86.42M - "$@"; }
row_owf() { image owf_vit 34.45M - "$@"; }
row_uit() { image uit 8.45M - "$@"; }
row_ringformer() { image ringformer_vit 12.02M - "$@"; }
row_uit_wide() { image uit_wide 31.99M - "$@"; }
row_ringformer_wide() { image ringformer_vit_wide 31.95M - "$@"; }

table "$@"
