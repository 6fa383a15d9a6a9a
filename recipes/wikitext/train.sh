#!/usr/bin/env bash
# Takase & Kiyono's language models, Table 5: train one row, test it with a window of context, record.
#
#   recipes/wikitext/train.sh ROW [flags of fairseq-train]
#
# ROW   vanilla, sequence, cycle, cycle_rev, universal, sequence_large
# SCALE smoke  WikiText-2, 64 wide, 4 passes, 20 updates: a minute; shows that the recipe works, no more
#       small  WikiText-2, 256 wide, the row's passes, 300 updates of 2,048 words: 10 to 20 minutes on a core
#       paper  WikiText-103, the row's size, 50,000 updates at rate 1e-3 with 2,000 of warm-up, as the paper says; it does
#              not say how many words an update has: 65,536 here, on 8 x 8,192 accumulated. For GPUs; days on one
# SEED, OUT, DRY_RUN, THREADS as in recipes/common.sh; DATA_ROOT as in prepare.sh
# PRECISION  bf16 (default) or fp32
# RESULTS    the table that the run is appended to
source "$(dirname "$0")/../common.sh"

[ $# -ge 1 ] || fail "usage: $0 ROW [flags of fairseq-train] (rows are listed at the head of this file)"
ROW=$1
SCALE=${SCALE:-smoke}
PRECISION=${PRECISION:-bf16}
CALL="SCALE=$SCALE SEED=$SEED recipes/wikitext/train.sh $*"
shift

# The one place where scales differ.
case $SCALE in
smoke) SET=2 TEXT=64 WORDS=512 EVERY=1 UPDATES=20 WARMUP=5 SIZE=(--decoder-embed-dim 64 --decoder-attention-heads 2) ;;
small) SET=2 TEXT=128 WORDS=2048 EVERY=1 UPDATES=300 WARMUP=60 SIZE=(--decoder-embed-dim 256 --decoder-attention-heads 4) ;;
paper) SET=103 TEXT=512 WORDS=8192 EVERY=8 UPDATES=50000 WARMUP=2000 SIZE=() ;;
*) fail "SCALE=$SCALE: must be smoke, small or paper" ;;
esac
case $PRECISION in
bf16) NUMBERS=(--bf16) ;;
fp32) NUMBERS=() ;;
*) fail "PRECISION=$PRECISION: must be bf16 or fp32" ;;
esac
case $ROW in
vanilla | sequence | cycle | cycle_rev | universal) ARCH=${ROW}_lm ;;
sequence_large) ARCH=sequence_lm_large ;;
*) fail "ROW=$ROW: must be vanilla, sequence, cycle, cycle_rev, universal or sequence_large" ;;
esac
if [ "$SCALE" = smoke ]; then
    case $ROW in
    vanilla) SIZE+=(--decoder-layers 2 --decoder-unique-layers 2) ;;
    universal) SIZE+=(--decoder-layers 4) ;;
    *) SIZE+=(--decoder-layers 4 --decoder-unique-layers 2) ;;
    esac
fi
if [ "$SET" = 2 ]; then SIZE+=(--adaptive-input-cutoff 2000,6000); fi

RUN=$OUT/wikitext/train/$SCALE/$ROW/s$SEED
BIN=$OUT/wikitext/bin-$SET
if [ "$SCALE" = smoke ]; then RESULTS=${RESULTS:-$OUT/wikitext/results.csv}; fi
RESULTS=${RESULTS:-$ROOT/recipes/wikitext/results.csv}

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
    run_into "$RUN/scores.json" python "$TOOLS/perplexity.py" "$RUN" --pieces "$OUT/wikitext/raw-$SET/test.tokens" \
        --contexts $TEXT
    if [ "$DRY_RUN" != 1 ]; then cat "$RUN/scores.json"; fi
}

SET=$SET OUT=$OUT DRY_RUN=$DRY_RUN "$(dirname "$0")/prepare.sh"
FLAGS=("$@")
RECORD=(--results "$RESULTS" --table "Takase 5" --row "$ROW" --arch "$ARCH" --scale "$SCALE" --seed "$SEED"
    --command "$CALL" --checkpoint checkpoints/checkpoint_best.pt --metrics perplexity_$TEXT)
once "$RUN" training evaluation
