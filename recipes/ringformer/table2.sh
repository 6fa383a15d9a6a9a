#!/usr/bin/env bash
# RingFormer, Table 2: ImageNet-small, 100 classes of ImageNet.
#
#   recipes/ringformer/table2.sh ROW|all|list [options of train_image.py]
#
# SCALE, PRECISION, MICRO_BATCH, RESULTS as in recipes/lib/images.sh; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in
# recipes/common.sh
#
# Scale paper: rate 1e-3, 1,024 images an update, 100 epochs (9,775 updates in the paper, 9,700 here, where images that
# do not fill an update are left out), of which 20 warm up (its 2,000 updates). A row _narrow is the paper's down-scaled
# one, _wide its scaled one. The rest is in recipes/ringformer/lib/images.sh. Run recipes/data/imagenet.sh first, of which
# the set is a part.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"
source "$(dirname "$0")/lib/images.sh"

TABLE="RingFormer 2"
PAPER_DATA=imagenet_small PAPER_BATCH=1024
PAPER_FLAGS+=(--lr 1e-3 --epochs 100 --warmup-epochs 20)

row_vit() { image plain_vit_small 19.36M - num_classes=100 "$@"; }
row_uit() { image uit_small 3.60M - num_classes=100 "$@"; }
row_owf_narrow() { image owf_vit_small_narrow 4.51M - num_classes=100 "$@"; }
row_ringformer() { image ringformer_vit_small 4.4M - num_classes=100 "$@"; }
row_vit_narrow() { image plain_vit_small_narrow 8.94M - num_classes=100 "$@"; }
row_uit_wide() { image uit_small_wide 8.84M - num_classes=100 "$@"; }
row_owf() { image owf_vit_small 8.86M - num_classes=100 "$@"; }
row_ringformer_wide() { image ringformer_vit_small_wide 8.82M - num_classes=100 "$@"; }

table "$@"
