#!/usr/bin/env bash
# What Admin does for deep post-norm models: 18 + 18 passes with it and without, and both losses in one picture.
#
#   recipes/takase/admin.sh ROW|all|list [flags of fairseq-train]
#
# ROW   plain, admin: 6 stored layers in the order of CYCLE (REV); unshared, unshared_admin: 18 layers
# SCALE smoke  64 wide, 50 updates, as in recipes/lib/translation.sh
#       small  128 wide on Multi30k, 400 updates of about 900 target tokens, with the paper's rate of 1e-3 after 100 updates of
#              warm-up where the paper has 4,000, and unclipped gradients: about 8 minutes on a core that has nothing else
#              to do
#       paper  the rows of Table 1, see recipes/takase/lib/translation.sh
# PRECISION  fp32 (default), bf16 or fp16
# RESULTS    the table that the run is appended to; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in recipes/common.sh
source "$(dirname "$0")/../common.sh"
PRECISION=${PRECISION:-fp32}
source "$ROOT/recipes/lib/translation.sh"
source "$(dirname "$0")/lib/translation.sh"

TABLE="Takase Admin"
PAPER_DATA=wmt16_en_de PAPER_PAIR="en de" PAPER_TESTS=(newstest2014:test4)
PAPER_FLAGS+=(--share-all-embeddings)
SMALL_WIDTH=128
SMALL_FLAGS=(--lr 1e-3 --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --warmup-updates 100 --clip-norm 0.0
    --max-update 400 --save-interval-updates 100 --keep-interval-updates 1 --log-interval 10 --max-tokens-valid 4096)

scoring() {
    run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/loss.py" "$RUN/train.log"
    if [ "$DRY_RUN" != 1 ]; then cat "$RUN/scores.json"; fi
}

drawing() {
    run python "$ROOT/recipes/figures/curves.py" "$OUT/$PAPER/$NAME/$SCALE" --title "18 + 18 passes, scale $SCALE" \
        --stage train_inner --y nll_loss --nats --unit "nats a token" --output "$OUT/$PAPER/admin-$SCALE.svg"
}

train() {
    if listed "$1" - - "${@:2}"; then return; fi
    ARCH=$1 FLAGS=("${@:2}")
    translation_settings
    translation_data
    recorded "$ARCH" - --checkpoint checkpoints/checkpoint_last.pt --metrics loss
    OUT=$OUT DRY_RUN=$DRY_RUN SCALE=smoke "$PREPARE"
    once "$RUN" translation_training scoring drawing
}

row_plain() { train cycle_rev --encoder-layers 18 --decoder-layers 18 "$@"; }
row_admin() { train cycle_rev --encoder-layers 18 --decoder-layers 18 "${ADMIN[@]}" "$@"; }
row_unshared() { train takase_vanilla_deep "$@"; }
row_unshared_admin() { train takase_vanilla_deep "${ADMIN[@]}" "$@"; }

table "$@"
