#!/usr/bin/env bash
# SReT, Table 5: ImageNet-1K, from labels, from a teacher's soft labels alone, and trained on at 384 and 512 pixels.
#
#   recipes/sret/table5.sh ROW|all|list [options of train_image.py]
#
# SCALE, PRECISION, MICRO_BATCH, RESULTS as in recipes/lib/images.sh; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in
# recipes/common.sh; the settings of scale paper are in recipes/sret/lib/images.sh
#
# A row _global is without slices. A row that starts from another (from a model trained at 224 pixels, and at the
# smaller scales from the row that is the teacher) trains that one first. Results are those of the published code's
# page. It says of distillation that a rate of 1e-3 x batch / 512 after 30 epochs of warm-up works better than what was
# used, which is not known; scale paper has the better one. The teacher is not known either: DeiT's, a RegNetY-16GF that
# timm has, is used; --teacher takes another. The larger images have DeiT's settings: 30 epochs, 512 images an update,
# rate 5e-6 throughout after the warm-up, weight decay 1e-8; and the same teacher.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"
source "$(dirname "$0")/lib/images.sh"

TABLE="SReT 5"

# distilled ARCH PARAMETERS VALUE...: as pyramid, from soft labels alone.
distilled() {
    PAPER_FLAGS+=(--lr 2e-3 --warmup-epochs 30 --teacher regnety_160.deit_in1k)
    taught "$@"
}

# The teacher of the smaller scales is a row of this table.
taught() {
    if [ "$SCALE" != paper ]; then
        after s_global
        image_size sret_s_global "$([ "$SCALE" = small ] && echo $SMALL_DIVISOR || echo 8)"
        SMALLER+=(--teacher sret_s_global --teacher-kwargs "${SIZE[@]}" --teacher-checkpoint "$FROM")
    fi
    pyramid "$@"
}

# larger ROW PIXELS ARCH PARAMETERS VALUE...: a distilled row, trained on at larger images (at the smaller scales 96 or
# 128).
larger() {
    local pixels=96
    if [ "$2" = 512 ]; then pixels=128; fi
    after "$1"
    PAPER_BATCH=512 PAPER_KWARGS+=("checkpoint_path=$FROM") SMALLER=("checkpoint_path=$FROM" --img-size $pixels)
    PAPER_FLAGS+=(--lr 5e-6 --min-lr 5e-6 --weight-decay 1e-8 --epochs 30 --teacher regnety_160.deit_in1k)
    taught "${@:3:3}" img_size="$2" "${@:6}"
}

row_ext() { pyramid sret_ext 4.0M - "$@"; }
row_t_global() { pyramid sret_t_global 4.8M 76.1 "$@"; }
row_t() { pyramid sret_t 4.8M 76.0 "$@"; }
row_tl_global() { pyramid sret_tl_global 5.0M 76.8 "$@"; }
row_tl() { pyramid sret_tl 5.0M - "$@"; }
row_tl_16_14() {
    SMALLER=("groups=((16,1),(8,1),(1,1))") # of 64 and 16 tokens
    pyramid sret_tl 5.0M 76.6 "groups=((16,1),(14,1),(1,1))" "$@"
}
row_s_global() { pyramid sret_s_global 20.9M 82.0 "$@"; }
row_s() { pyramid sret_s 20.9M 81.9 "$@"; }
row_t_global_distilled() { distilled sret_t_global 4.8M 77.7 "$@"; }
row_t_distilled() { distilled sret_t 4.8M 77.6 "$@"; }
row_tl_global_distilled() { distilled sret_tl_global 5.0M 77.9 "$@"; }
row_tl_distilled() { distilled sret_tl 5.0M 77.7 "$@"; }
row_s_global_distilled() { distilled sret_s_global 20.9M - "$@"; }
row_t_global_384() { larger t_global_distilled 384 sret_t_global 4.9M 79.7 "$@"; }
row_s_global_384() { larger s_global_distilled 384 sret_s_global 21.0M 83.8 "$@"; }
row_s_global_512() { larger s_global_distilled 512 sret_s_global 21.3M 84.3 "$@"; }

table "$@"
