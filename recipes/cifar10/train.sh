#!/usr/bin/env bash
# CIFAR-10: train one architecture at one size and one budget, test, record.
#
#   recipes/cifar10/train.sh ROW [options of train_image.py]
#
# ROW   plain, plain_half (the same with half the blocks: the control that sharing has to beat), deit (recursive DeiT
#       that runs its blocks once), deit_x2 (the same blocks twice), deit_half_x2 (half the blocks, twice), sret,
#       sret_global (no slices), sret_no_lrc (no learnable residual coefficients), ringformer, uit, owf
# SCALE smoke  width 32, 2 passes, 1 epoch of the test images: under a minute on one core; shows that the recipe works
#       cpu    width 128, 6 passes, 20 epochs: 5 to 15 minutes on one core with the 5,000 images of DATA_ROOT
#       gpu    DeiT-Tiny's size (width 192, 12 passes), 300 epochs, Mixup, CutMix and RandAugment
# SEED, OUT, DRY_RUN, THREADS as in recipes/common.sh; DATA_ROOT as in prepare.sh
# RESULTS    the table that the run is appended to; runs on the 5,000 images of DATA_ROOT have -5000 in their scale
#
# Images are enlarged to 64 pixels, so that SReT's stem leaves its first stage the 8 x 8 tokens that the others get from
# patches of 8. SReT has half the others' width in its first stage and doubles it twice, as its presets do.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"

[ $# -ge 1 ] || fail "usage: $0 ROW [options of train_image.py] (rows are listed at the head of this file)"
ROW=$1
SCALE=${SCALE:-smoke}
CALL="SCALE=$SCALE SEED=$SEED recipes/cifar10/train.sh $*"
shift

# Sizes by scale; the budgets are those of recipes/lib/images.sh. PYRAMID counts SReT's blocks, each of which runs twice.
case $SCALE in
smoke) WIDTH=32 HEADS=2 DEPTH=2 DROP=0 PYRAMID=("num_heads=(1,2,4)" "depths=(1,1,1)") ;;
cpu) WIDTH=128 HEADS=4 DEPTH=6 DROP=0 PYRAMID=("num_heads=(2,4,8)" "depths=(1,2,1)") ;;
gpu) WIDTH=192 HEADS=3 DEPTH=12 DROP=0.1 PYRAMID=("num_heads=(3,6,12)" "depths=(2,5,3)") ;;
*) fail "SCALE=$SCALE: must be smoke, cpu or gpu" ;;
esac

half=$((DEPTH / 2))
vit=(patch_size=8 embed_dim=$WIDTH num_heads=$HEADS drop_path_rate=$DROP)
pyramid=(embed_dim=$((WIDTH / 2)) "${PYRAMID[@]}" drop_path_rate=$DROP)
case $ROW in
plain) ARCH=plain_vit KWARGS=("${vit[@]}" depth=$DEPTH) ;;
plain_half) ARCH=plain_vit KWARGS=("${vit[@]}" depth=$half) ;;
deit) ARCH=recursive_deit_tiny KWARGS=("${vit[@]}" depth=$DEPTH loops=1) ;;
deit_x2) ARCH=recursive_deit_tiny KWARGS=("${vit[@]}" depth=$DEPTH loops=2) ;;
deit_half_x2) ARCH=recursive_deit_tiny KWARGS=("${vit[@]}" depth=$half loops=2) ;;
sret) ARCH=sret_tl KWARGS=("${pyramid[@]}") ;;
sret_global) ARCH=sret_tl_global KWARGS=("${pyramid[@]}") ;;
sret_no_lrc) ARCH=sret_tl KWARGS=("${pyramid[@]}" lrc=False) ;;
ringformer) ARCH=ringformer_vit KWARGS=("${vit[@]}" depth=$DEPTH) ;;
uit) ARCH=uit KWARGS=("${vit[@]}" depth=$DEPTH) ;;
owf) ARCH=owf_vit KWARGS=("${vit[@]}" depth=$DEPTH) ;;
*) fail "ROW=$ROW: must be one of those at the head of $0" ;;
esac

image_budget "$SCALE"
cifar10_images
LABEL=$SCALE${DATA_ROOT:+-5000} FLAGS=("$@")
if [ "$SCALE" = smoke ]; then RESULTS=${RESULTS:-$OUT/cifar10/results.csv}; fi
RUN=$OUT/cifar10/train/$LABEL/$ROW/s$SEED
RECORD=(--results "${RESULTS:-$ROOT/recipes/cifar10/results.csv}" --table cifar10 --row "$ROW" --arch "$ARCH"
    --scale "$LABEL" --seed "$SEED" --command "$CALL" --metrics top1 mmac)
run env OUT="$OUT" "$PREPARE"
once "$RUN" image_training image_scoring
