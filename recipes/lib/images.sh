# A row of an image table: prepare the images, train, test, record. Source it after common.sh.
#
#   image ARCH PARAMETERS VALUE [key=value of the model's constructor...] [options of train_image.py]
#
# with the paper's parameters and result ("-" where they are not known), for `listed`. Scales:
#   smoke  an eighth of the width, images of 64 pixels, one epoch: of the 1,000 test images of CIFAR-10 where DATA_ROOT
#          holds cifar10.tar, otherwise of scikit-learn's digits; shows that the recipe works, no more
#   small  CIFAR-10 at 64 pixels, the budget of recipes/cifar10 at its scale cpu (20 epochs), where there is a GPU at
#          its scale gpu (300 epochs); recorded as small, small-gpu, and with -5000 where DATA_ROOT holds the images
#   paper  the data and the settings of the table
# A row keeps its depth at every scale. The table's script sets
#   TABLE          name of the table
#   PAPER_DATA     the script of recipes/data that prepares its images, without .sh
#   PAPER_BATCH    images an update
#   PAPER_FLAGS    of train_image.py
#   PAPER_KWARGS   key=value of the constructor, for all rows
# and may set SMALL_DIVISOR, what widths are divided by at scale small (default 1), and for one row SMALLER=(...), what
# image itself takes but for the smaller scales alone. Of key=value, num_classes is for the list (training takes the
# classes of the data), and img_size becomes the trainer's --img-size at scale paper.
# MICRO_BATCH  at scale paper, how many images a process takes at once (default 128); an update gathers PAPER_BATCH
# PRECISION    at scale paper, bf16 (default), fp16 or fp32
# RESULTS      the table that the run is appended to

PRECISION=${PRECISION:-bf16} MICRO_BATCH=${MICRO_BATCH:-128}
SMALL_DIVISOR=1 SMALLER=() PAPER_FLAGS=() PAPER_KWARGS=()

case $PRECISION in
bf16) NUMBERS=(--amp bfloat16) ;;
fp16) NUMBERS=(--amp float16) ;;
fp32) NUMBERS=() ;;
*) fail "PRECISION=$PRECISION: must be bf16, fp16 or fp32" ;;
esac

# image_size ARCH DIVISOR: sets SIZE, the constructor's arguments for images of 64 pixels: the width divided, to the
# nearest number that the heads share out evenly (of a pyramid those of its first stage), and 64 patches.
image_size() {
    local width heads patches=(patch_size=8) step
    case $1 in
    ringformer_vit | uit | owf_vit | plain_vit) width=768 heads=12 ;;
    ringformer_vit_wide) width=1284 heads=12 ;;
    uit_wide) width=1560 heads=12 ;;
    ringformer_vit_small | uit_small | owf_vit_small | plain_vit_small) width=512 heads=8 ;;
    ringformer_vit_small_wide) width=728 heads=8 ;;
    uit_small_wide) width=848 heads=8 ;;
    owf_vit_small_narrow) width=376 heads=8 ;;
    plain_vit_small_narrow) width=328 heads=8 ;;
    recursive_deit_tiny | deit_108 | deit_108_mixed) width=192 heads=3 ;;
    recursive_mixer_s16) width=512 heads=1 ;;
    recursive_mixer_b16) width=768 heads=1 ;;
    sret_ext) width=48 heads=2 patches=() ;;
    sret_s | sret_s_global) width=126 heads=3 patches=() ;;
    sret_*) width=64 heads=2 patches=() ;;
    *) fail "ARCH=$1: of unknown width" ;;
    esac
    step=$(($2 * 2 * heads))
    SIZE=("embed_dim=$(((width + step / 2) / step * 2 * heads))" "${patches[@]}")
}

# image_budget smoke|cpu|gpu: sets SETTINGS, those of training on small images; recipes/cifar10 has the same.
image_budget() {
    local mild=(--scale 0.5 1 --color-jitter 0)
    SETTINGS=(--img-size 64 --crop-pct 1 --opt adamw --lr 1e-3 --weight-decay 0.05 --clip-grad 1)
    case $1 in
    smoke) SETTINGS+=(--epochs 1 --warmup-epochs 0 --batch-size 50 --workers 0 "${mild[@]}") ;;
    cpu) SETTINGS+=(--epochs 20 --warmup-epochs 2 --batch-size 50 --workers 0 "${mild[@]}") ;;
    gpu) SETTINGS+=(--epochs 300 --warmup-epochs 10 --batch-size 512 --workers 8 --scale 0.5 1 --amp bfloat16
        --aa rand-m9-mstd0.5-inc1 --mixup 0.8 --cutmix 1) ;;
    esac
}

# CIFAR-10, of which one epoch at scale smoke is of the test images.
cifar10_images() {
    PREPARE=$ROOT/recipes/cifar10/prepare.sh DATA=("$OUT/cifar10/full" --dataset torch/cifar10 --val-split test)
    if [ -n "${DATA_ROOT:-}" ]; then DATA=("$OUT/cifar10/5000" --val-split test); fi
    if [ "$SCALE" = smoke ]; then DATA+=(--train-split test); fi
}

# The paper's batch, gathered from the processes and from as many steps as it takes.
paper_batch() {
    local processes=$((GPUS * NODES)) batch=$MICRO_BATCH
    if [ $((processes * batch)) -gt "$PAPER_BATCH" ]; then batch=$((PAPER_BATCH / processes)); fi
    [ "$batch" -gt 0 ] && [ $((PAPER_BATCH % (processes * batch))) -eq 0 ] ||
        fail "GPUS=$GPUS, NODES=$NODES, MICRO_BATCH=$MICRO_BATCH: their product must divide the paper's $PAPER_BATCH"
    SETTINGS=(--batch-size "$batch" --grad-accum-steps $((PAPER_BATCH / processes / batch)))
}

# The scale as runs are recorded under it: small ones have endings that tell which budget and which images they had.
image_scale() {
    local found=$SCALE
    if [ "$SCALE" = small ] && has_gpu; then found+=-gpu; fi
    if [ "$SCALE" = small ] && [ -n "${DATA_ROOT:-}" ]; then found+=-5000; fi
    echo "$found"
}

has_gpu() { command -v nvidia-smi >/dev/null; }

# What the scale says: PREPARE, DATA, SIZE and SETTINGS.
image_settings() {
    case $SCALE in
    smoke)
        image_budget smoke
        image_size "$1" 8
        cifar10_images
        if [ ! -f "${DATA_ROOT:-/nonexistent}/cifar10.tar" ]; then
            PREPARE=$ROOT/recipes/digits/prepare.sh DATA=("$OUT/digits/images")
        fi
        ;;
    small)
        image_budget cpu
        image_size "$1" "$SMALL_DIVISOR"
        cifar10_images
        if has_gpu; then
            image_budget gpu
            SIZE+=(drop_path_rate=0.1)
        fi
        ;;
    paper)
        PREPARE=$ROOT/recipes/data/$PAPER_DATA.sh DATA=("$OUT/data/$PAPER_DATA") SIZE=("${PAPER_KWARGS[@]}")
        paper_batch
        SETTINGS+=(--img-size 224 --workers 8 "${NUMBERS[@]}" "${PAPER_FLAGS[@]}")
        ;;
    *) fail "SCALE=$SCALE: must be smoke, small or paper" ;;
    esac
}

# Adds key=value to KWARGS and what follows to FLAGS.
image_arguments() {
    while [[ ${1:-} =~ ^[a-z_]+= ]]; do
        case $1 in
        num_classes=*) ;;
        img_size=*) if [ "$SCALE" = paper ]; then FLAGS+=(--img-size "${1#*=}"); fi ;;
        *) KWARGS+=("$1") ;;
        esac
        shift
    done
    FLAGS+=("$@")
}

image_training() {
    run_image_training "$RUN/train.log" "${DATA[@]}" --model "$ARCH" --model-kwargs "${KWARGS[@]}" --output "$RUN" \
        --seed "$SEED" "${SETTINGS[@]}" "${FLAGS[@]}"
}

image_scoring() {
    run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/score_image.py" "$RUN"
    if [ "$DRY_RUN" != 1 ]; then cat "$RUN/scores.json"; fi
}

image() {
    if listed "$@"; then return; fi
    local given
    ARCH=$1 FLAGS=()
    image_settings "$1"
    KWARGS=("${SIZE[@]}")
    image_arguments "${@:4}"
    if [ "$SCALE" != paper ]; then
        given=("${FLAGS[@]}") FLAGS=()
        image_arguments "${SMALLER[@]}"
        FLAGS+=("${given[@]}")
    fi
    SCALE=$(image_scale)
    recorded "$ARCH" "$3" --metrics top1 mmac
    run env OUT="$OUT" "$PREPARE"
    once "$RUN" image_training image_scoring
}

# image_cost ARCH PARAMETERS VALUE [key=value...]: count what a model computes, and measure its speed where THROUGHPUT
# says how many images a batch has; nothing is trained, and all scales are the same. COSTS are the metrics, VALUE is of
# the first.
image_cost() {
    if listed "$@"; then return; fi
    ARCH=$1 KWARGS=("${@:4}")
    recorded "$ARCH" "$3" --metrics "${COSTS[@]}"
    once "$RUN" image_counting
}

image_counting() {
    run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/cost_image.py" "$ARCH" "${KWARGS[@]}" \
        ${THROUGHPUT:+--throughput "$THROUGHPUT"}
    if [ "$DRY_RUN" != 1 ]; then cat "$RUN/scores.json"; fi
}

# after ROW: train another row of the table first, unless it has been; FROM is its last checkpoint.
after() {
    FROM=$OUT/$PAPER/$NAME/$(image_scale)/$1/s$SEED/last.pth.tar
    if [ "${LISTING:-0}" != 1 ]; then "$0" "$1"; fi
}
