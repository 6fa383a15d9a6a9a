#!/usr/bin/env bash
# Prints the commands of an image row: prepare the images, train, test.
#
# Scales (a row keeps its depth at every scale):
#   smoke  an eighth of the width, images of 64 pixels, one epoch on the 1,000 test images of CIFAR-10 if DATA_ROOT holds
#          cifar10.tar, otherwise on scikit-learn's digits; only shows that the row works
#   small  CIFAR-10 at 64 pixels, 2,000 updates of 50 images, widths divided by DIVISOR
#   long   CIFAR-10 at 64 pixels, 60 epochs of random crops and flips, widths divided by DIVISOR where it is set for this scale
#   paper  the data and the settings of the table
# CIFAR10 is full or jpeg, all of CIFAR-10; 5000, a tenth of its images (see cifar10/prepare.sh); or digits. SIZE has the arguments
# of a smaller model, one per line (see records/commands.py). HELD_OUT=1 trains without the images held out of the training set, and
# scores those.
source "$(dirname "$0")/../common.sh"

# Settings for training on small images.
SMALL=(--img-size 64 --crop-pct 1 --opt adamw --lr 1e-3 --weight-decay 0.05 --clip-grad 1)
GENTLE=(--batch-size 50 --workers 0 --scale 0.5 1 --color-jitter 0)
case $SCALE in
smoke) SETTINGS=("${SMALL[@]}" "${GENTLE[@]}" --epochs 1 --warmup-epochs 0) ;;
small)
    SETTINGS=("${SMALL[@]}" "${GENTLE[@]}" --epochs 2 --warmup-epochs 0.2)
    if [ "$CIFAR10" = 5000 ]; then SETTINGS+=(--epochs 20 --warmup-epochs 2); fi
    ;;
long)
    SETTINGS=("${SMALL[@]}" --lr 2e-3 --epochs 60 --warmup-epochs 3 --batch-size 128 --workers 0 --resize 72 --color-jitter 0)
    ;;
paper)
    SETTINGS=(--batch-size "$MICRO_BATCH" --grad-accum-steps "$ACCUMULATE" --img-size 224 --workers 8)
    if [ -n "${REPEATS:-}" ]; then SETTINGS+=(--aug-repeats "$REPEATS"); fi # copies of an image in a batch of all processes
    case $PRECISION in
    bf16) SETTINGS+=(--amp bfloat16) ;;
    fp16) SETTINGS+=(--amp float16) ;;
    esac
    ;;
esac

if [ "$SCALE" = paper ]; then
    IMAGES=("$OUT/data/$DATA")
    prepare "$DATA"
else
    if [ "$CIFAR10" = digits ]; then
        IMAGES=("$OUT/digits/images")
        prepare digits/prepare
    elif [ "$SCALE" != smoke ] && [ "${HELD_OUT:-0}" = 1 ]; then
        IMAGES=("$OUT/cifar10/$CIFAR10-held-out" --val-split test)
        prepare cifar10/prepare CIFAR10="$CIFAR10" HELD_OUT=1
    else
        IMAGES=("$OUT/cifar10/$CIFAR10" --val-split test)
        if [ "$CIFAR10" = full ]; then IMAGES+=(--dataset torch/cifar10); fi
        if [ "$SCALE" = smoke ]; then IMAGES+=(--train-split test); fi
        prepare cifar10/prepare CIFAR10="$CIFAR10"
    fi
fi

array_of KWARGS kwargs
array_of SIZE size
PROGRAM=(python)
if [ "$GPUS" -gt 1 ]; then PROGRAM=(torchrun --standalone --nproc_per_node "$GPUS"); fi
heading training
run "${PROGRAM[@]}" "$ROOT/recipes/train_image.py" "${IMAGES[@]}" --model "$ARCH" --model-kwargs "${size[@]}" "${kwargs[@]}" --output "$RUN" \
    --seed "$SEED" "${SETTINGS[@]}" "$@" --resume
heading scoring
run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/score_image.py" "$RUN"
