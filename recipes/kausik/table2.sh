#!/usr/bin/env bash
# Kausik's Table 2, tiny Shakespeare by characters: train one row, evaluate it on the validation text, record.
#
#   recipes/kausik/table2.sh ROW|all|list [flags of fairseq-train]
#
# ROW   regular_1, regular_6 (layers, learned positions), recurrent_positions, recurrent (1 layer, window of 1 token)
# SCALE smoke  64 wide, 20 updates of 2,048 characters: a minute; shows that the recipe works, no more
#       small  the paper's sizes, texts of 128 characters, 400 updates of 4,096 without dropout: 2 to 8 minutes on a core
#       paper  the paper's recipe: texts of 256, 10,000 updates of 32,768, dropout 0.2, rate 1e-3 throughout; for a GPU.
# SEED, OUT, DRY_RUN, THREADS as in recipes/common.sh; DATA_ROOT as in prepare.sh
# PRECISION  bf16 (default), fp32 (the paper's), or on a GPU fp16 by autocast
# RESULTS    the table that the run is appended to
source "$(dirname "$0")/../common.sh"

SCALE=${SCALE:-smoke}
PRECISION=${PRECISION:-bf16}

# The one place where scales differ.
case $SCALE in
smoke) WIDTH=64 HEADS=2 TEXT=64 BATCH=32 UPDATES=20 EVERY=10 DROPOUT=0 ;;
small) WIDTH=384 HEADS=6 TEXT=128 BATCH=32 UPDATES=400 EVERY=100 DROPOUT=0 ;;
paper) WIDTH=384 HEADS=6 TEXT=256 BATCH=128 UPDATES=10000 EVERY=250 DROPOUT=0.2 ;;
*) fail "SCALE=$SCALE: must be smoke, small or paper" ;;
esac
case $PRECISION in
bf16) NUMBERS=(--bf16) ;;
fp16) NUMBERS=(--amp) ;;
fp32) NUMBERS=() ;;
*) fail "PRECISION=$PRECISION: must be bf16, fp16 or fp32" ;;
esac
TABLE="Kausik 2"
BIN=$OUT/kausik/characters

training() {
    run_training "$RUN/train.log" "$BIN" --user-dir "$ROOT/fairseq_plugin" --task language_modeling \
        --arch recurrent_lm --save-dir "$RUN/checkpoints" --seed "$SEED" --log-format json \
        --decoder-embed-dim $WIDTH --decoder-attention-heads $HEADS --dropout $DROPOUT \
        --tokens-per-sample $TEXT --sample-break-mode none --batch-size $BATCH --criterion cross_entropy \
        --optimizer adam --adam-betas "(0.9, 0.95)" --weight-decay 0.1 --lr 1e-3 --lr-scheduler fixed \
        --clip-norm 1.0 --valid-subset valid,valid1 --max-update $UPDATES --required-batch-size-multiple 1 --update-epoch-batch-itr True \
        --no-epoch-checkpoints --save-interval-updates $EVERY --keep-interval-updates 1 --log-interval $EVERY \
        "${NUMBERS[@]}" "${FLAGS[@]}"
}

evaluation() {
    run_into "$RUN/eval.log" fairseq-eval-lm "$BIN" --user-dir "$ROOT/fairseq_plugin" --task language_modeling \
        --path "$RUN/checkpoints/checkpoint_best.pt" --gen-subset valid --tokens-per-sample $TEXT \
        --sample-break-mode none --batch-size $BATCH
    run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/loss.py" "$RUN/eval.log" --symbols 111540
    if [ "$DRY_RUN" != 1 ]; then cat "$RUN/scores.json"; fi
}

# train PARAMETERS LOSS [flags]: with the paper's parameters and validation loss.
train() {
    if listed recurrent_lm "$@"; then return; fi
    FLAGS=("${@:3}")
    recorded recurrent_lm "$2" --checkpoint checkpoints/checkpoint_best.pt --metrics loss
    OUT=$OUT DRY_RUN=$DRY_RUN "$(dirname "$0")/prepare.sh"
    once "$RUN" training evaluation
}

row_regular_1() { train 1.89M 1.5697 --regular --decoder-layers 1 "$@"; }
row_regular_6() { train 10.74M 1.4815 --regular --decoder-layers 6 "$@"; }
row_recurrent_positions() { train 1.89M 1.4738 --position learned "$@"; }
row_recurrent() { train 1.79M 1.4699 "$@"; }

table "$@"
