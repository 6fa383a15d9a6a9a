#!/usr/bin/env bash
# Takase & Kiyono's language models, Table 5: train one row, test it with a window of context, record.
#
#   recipes/takase/table5.sh ROW|all|list [flags of fairseq-train]
#
# ROW   vanilla, sequence, cycle, cycle_rev, universal, sequence_large
# SCALE smoke  WikiText-2, 64 wide, 4 passes, 20 updates: a minute; shows that the recipe works, no more
#       small  WikiText-2, 256 wide, the row's passes, 150 updates of 2,048 words: 5 to 10 minutes on a core
#       paper  WikiText-103, the row's size, 50,000 updates at rate 1e-3 with 2,000 of warm-up, as the paper says; it does
#              not say how many words an update has: 65,536 here, on 8 x 8,192 accumulated. For GPUs; days on one
# SEED, OUT, DRY_RUN, THREADS as in recipes/common.sh; DATA_ROOT as in wikitext.sh
# PRECISION  bf16 (default) or fp32
# RESULTS    the table that the run is appended to
source "$(dirname "$0")/../common.sh"

SCALE=${SCALE:-smoke}
PRECISION=${PRECISION:-bf16}

# The one place where scales differ.
case $SCALE in
smoke) SET=2 TEXT=64 WORDS=512 EVERY=1 UPDATES=20 WARMUP=5 SIZE=(--decoder-embed-dim 64 --decoder-attention-heads 2) ;;
small) SET=2 TEXT=128 WORDS=2048 EVERY=1 UPDATES=150 WARMUP=30 SIZE=(--decoder-embed-dim 256 --decoder-attention-heads 4) ;;
paper) SET=103 TEXT=512 WORDS=8192 EVERY=8 UPDATES=50000 WARMUP=2000 SIZE=() ;;
*) fail "SCALE=$SCALE: must be smoke, small or paper" ;;
esac
case $PRECISION in
bf16) NUMBERS=(--bf16) ;;
fp32) NUMBERS=() ;;
*) fail "PRECISION=$PRECISION: must be bf16 or fp32" ;;
esac
if [ "$SET" = 2 ]; then SIZE+=(--adaptive-input-cutoff 2000,6000); fi

TABLE="Takase 5"
BIN=$OUT/takase/wikitext/bin-$SET

training() {
    run_training "$RUN/train.log" "$BIN" --user-dir "$ROOT/fairseq_plugin" --task language_modeling --arch "$ARCH" \
        --save-dir "$RUN/checkpoints" --seed "$SEED" --tokens-per-sample $TEXT --sample-break-mode none \
        --max-tokens $WORDS --update-freq $EVERY --criterion adaptive_loss --ddp-backend legacy_ddp \
        --optimizer adam --adam-betas "(0.9, 0.98)" --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates $WARMUP \
        --clip-norm 0.1 --max-update $UPDATES --required-batch-size-multiple 1 --update-epoch-batch-itr True \
        --no-epoch-checkpoints --save-interval-updates $((UPDATES / 4)) --keep-interval-updates 1 \
        --log-interval $((UPDATES / 20)) "${NUMBERS[@]}" "${SIZE[@]}" "${FLAGS[@]}"
}

# Every word sees at least three quarters of a text before it.
evaluation() {
    run_into "$RUN/eval-$TEXT.log" fairseq-eval-lm "$BIN" --user-dir "$ROOT/fairseq_plugin" --task language_modeling \
        --path "$RUN/checkpoints/checkpoint_best.pt" --gen-subset test --sample-break-mode none \
        --tokens-per-sample $TEXT --context-window $((TEXT * 3 / 4)) --batch-size 32
    run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/perplexity.py" "$RUN" --pieces "$OUT/takase/wikitext/raw-$SET/test.tokens" \
        --contexts $TEXT
    if [ "$DRY_RUN" != 1 ]; then cat "$RUN/scores.json"; fi
}

# train ARCH PARAMETERS PERPLEXITY DEPTH [flags]: with the paper's parameters and perplexity; DEPTH is that of scale smoke.
train() {
    local depth=()
    if listed "$1" "$2" "$3" "${@:5}"; then return; fi
    if [ "$SCALE" = smoke ]; then read -r -a depth <<<"$4"; fi
    ARCH=$1 FLAGS=("${depth[@]}" "${@:5}")
    recorded "$ARCH" "$3" --checkpoint checkpoints/checkpoint_best.pt --metrics perplexity_$TEXT
    SET=$SET OUT=$OUT DRY_RUN=$DRY_RUN "$(dirname "$0")/wikitext.sh"
    once "$RUN" training evaluation
}

ONCE="--decoder-layers 2 --decoder-unique-layers 2"
TWICE="--decoder-layers 4 --decoder-unique-layers 2"

row_vanilla() { train vanilla_lm 121M - "$ONCE" "$@"; }
row_universal() { train universal_lm - - "--decoder-layers 4" "$@"; }
row_sequence() { train sequence_lm 121M - "$TWICE" "$@"; }
row_cycle() { train cycle_lm 121M - "$TWICE" "$@"; }
row_cycle_rev() { train cycle_rev_lm 121M - "$TWICE" "$@"; }
row_sequence_large() { train sequence_lm_large 234M - "$TWICE" "$@"; }

table "$@"
