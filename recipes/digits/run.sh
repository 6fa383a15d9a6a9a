#!/usr/bin/env bash
# The demo of the image models: a small RingFormer-ViT and a small SReT learn real handwritten digits, in timm's own loop.
#
#   recipes/digits/run.sh [options of train_image.py]
#
# SCALE  demo   two minutes of training on 2 cores (default)
#        smoke  one epoch each: under a minute; shows that the recipe works, no more
# SEED, OUT, DRY_RUN, THREADS as in recipes/common.sh
# Expected at scale demo: at least 95 % of 360 digits, mostly by people whose hand training has not seen.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"

SCALE=${SCALE:-demo}

# The one place where scales differ.
case $SCALE in
smoke) RING_EPOCHS=1 SRET_EPOCHS=1 WARMUP=0 ;;
demo) RING_EPOCHS=25 SRET_EPOCHS=14 WARMUP=2 ;;
*) fail "SCALE=$SCALE: must be demo or smoke" ;;
esac

DATA=("$OUT/digits/images")
RING=(patch_size=4 embed_dim=64 depth=6 num_heads=4)
SRET=(embed_dim=64 "num_heads=(2,4,8)" "depths=(1,1,1)")

# train_model ARCH EPOCHS key=value...
train_model() {
    ARCH=$1 KWARGS=("${@:3}")
    SETTINGS=(--img-size 32 --epochs "$2" --warmup-epochs $WARMUP --batch-size 32 --lr 1e-3 --clip-grad 1 --scale 0.7 1
        --hflip 0 --color-jitter 0 --crop-pct 1 --workers 0)
    RUN=$OUT/digits/run/$SCALE/$ARCH/s$SEED
    RECORD=(--results "$OUT/digits/results.csv" --table digits --row "$ARCH" --arch "$ARCH" --scale "$SCALE" --seed "$SEED"
        --command "SCALE=$SCALE SEED=$SEED recipes/digits/run.sh ${FLAGS[*]}" --metrics top1 mmac)
    once "$RUN" image_training image_scoring
}

run env OUT="$OUT" "$ROOT/recipes/digits/prepare.sh"
FLAGS=("$@")
train_model ringformer_vit "$RING_EPOCHS" "${RING[@]}"
train_model sret_ext "$SRET_EPOCHS" "${SRET[@]}"
run python "$ROOT/recipes/digits/report.py" "$OUT/digits/run/$SCALE"/{ringformer_vit,sret_ext}/"s$SEED"
