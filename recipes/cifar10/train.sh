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

[ $# -ge 1 ] || fail "usage: $0 ROW [options of train_image.py] (rows are listed at the head of this file)"
ROW=$1
SCALE=${SCALE:-smoke}
CALL="SCALE=$SCALE SEED=$SEED recipes/cifar10/train.sh $*"
shift

# The one place where scales differ. PYRAMID counts SReT's blocks, each of which runs twice.
MILD=(--scale 0.5 1 --color-jitter 0)
STRONG=(--scale 0.5 1 --aa rand-m9-mstd0.5-inc1 --mixup 0.8 --cutmix 1 --amp bfloat16)
case $SCALE in
smoke)
    WIDTH=32 HEADS=2 DEPTH=2 DROP=0 WORKERS=0 EPOCHS=1 WARMUP=0 BATCH=50 AUGMENTATION=("${MILD[@]}")
    PYRAMID=("num_heads=(1,2,4)" "depths=(1,1,1)")
    ;;
cpu)
    WIDTH=128 HEADS=4 DEPTH=6 DROP=0 WORKERS=0 EPOCHS=20 WARMUP=2 BATCH=50 AUGMENTATION=("${MILD[@]}")
    PYRAMID=("num_heads=(2,4,8)" "depths=(1,2,1)")
    ;;
gpu)
    WIDTH=192 HEADS=3 DEPTH=12 DROP=0.1 WORKERS=8 EPOCHS=300 WARMUP=10 BATCH=512
    AUGMENTATION=("${STRONG[@]}")
    PYRAMID=("num_heads=(3,6,12)" "depths=(2,5,3)")
    ;;
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

DATA=("$OUT/cifar10/full" --dataset torch/cifar10) LABEL=$SCALE
if [ -n "${DATA_ROOT:-}" ]; then DATA=("$OUT/cifar10/5000") LABEL=$SCALE-5000; fi
if [ "$SCALE" = smoke ]; then
    DATA+=(--train-split test)
    RESULTS=${RESULTS:-$OUT/cifar10/results.csv}
fi
RESULTS=${RESULTS:-$ROOT/recipes/cifar10/results.csv}
RUN=$OUT/cifar10/train/$LABEL/$ROW/s$SEED

training() {
    run_image_training "$RUN/train.log" "${DATA[@]}" --val-split test --model "$ARCH" --model-kwargs "${KWARGS[@]}" \
        --img-size 64 --crop-pct 1 --output "$RUN" --seed "$SEED" --epochs $EPOCHS --warmup-epochs $WARMUP \
        --batch-size $BATCH --opt adamw --lr 1e-3 --weight-decay 0.05 --clip-grad 1 "${AUGMENTATION[@]}" "${FLAGS[@]}"
}

scoring() {
    run_into "$RUN/scores.json" python "$TOOLS/score_image.py" "$RUN"
    if [ "$DRY_RUN" != 1 ]; then cat "$RUN/scores.json"; fi
}

OUT=$OUT DRY_RUN=$DRY_RUN "$(dirname "$0")/prepare.sh"
FLAGS=(--workers $WORKERS "$@")
RECORD=(--results "$RESULTS" --table cifar10 --row "$ROW" --arch "$ARCH" --scale "$LABEL" --seed "$SEED"
    --command "$CALL" --metrics top1 mmac)
once "$RUN" training scoring
