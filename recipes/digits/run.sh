#!/usr/bin/env bash
# Image demo: trains a small RingFormer-ViT and a small SReT on real handwritten digits with timm's loaders and tasks.
#
#   recipes/digits/run.sh [options of train_image.py]
#
# The RingFormer-ViT is also trained with its block run once.
#
# SCALE  demo   two minutes of training on 2 cores (default)
#        smoke  one epoch each, under a minute; only shows that the recipe works
# SEED (default 1); OUT, DRY_RUN, THREADS as in recipes/common.sh
# Expected at scale demo: at least 95 % of the 360 held-out digits, most of them by writers not in the training set.
source "$(dirname "$0")/../common.sh"

SCALE=${SCALE:-demo} SEED=${SEED:-1}
case $SCALE in
smoke) RING_EPOCHS=1 SRET_EPOCHS=1 WARMUP=0 ;;
demo) RING_EPOCHS=25 SRET_EPOCHS=14 WARMUP=2 ;;
*) fail "SCALE=$SCALE: must be demo or smoke" ;;
esac

training() {
    run_logged "$RUN/train.log" python "$ROOT/recipes/train_image.py" "$OUT/digits/images" --model "$ARCH" \
        --model-kwargs "${KWARGS[@]}" --output "$RUN" --seed "$SEED" --img-size 32 --epochs "$EPOCHS" \
        --warmup-epochs $WARMUP --batch-size 32 --lr 1e-3 --clip-grad 1 --scale 0.7 1 --hflip 0 --color-jitter 0 \
        --crop-pct 1 --workers 0 "${FLAGS[@]}" --resume
}

scoring() { run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/score_image.py" "$RUN"; }

# learn NAME ARCH EPOCHS key=value...: train and score one model.
learn() {
    ARCH=$2 EPOCHS=$3 KWARGS=("${@:4}") RUN=$OUT/digits/run/$SCALE/$1/s$SEED
    stages "$RUN" training scoring
}

run env OUT="$OUT" "$ROOT/recipes/digits/prepare.sh"
learn ringformer_vit ringformer_vit "$RING_EPOCHS" patch_size=4 embed_dim=64 depth=6 num_heads=4
learn ringformer_vit_once ringformer_vit "$RING_EPOCHS" patch_size=4 embed_dim=64 depth=1 num_heads=4
learn sret_ext sret_ext "$SRET_EPOCHS" embed_dim=64 "num_heads=(2,4,8)" "depths=(1,1,1)"
run python "$ROOT/recipes/digits/report.py" "$OUT/digits/run/$SCALE"/{ringformer_vit,ringformer_vit_once,sret_ext}/"s$SEED"
