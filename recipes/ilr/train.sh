#!/usr/bin/env bash
# Intra-Layer Recurrence, Table 1 on War and Peace: train one reuse map with one encoding, test it at four contexts, record.
#
#   recipes/ilr/train.sh ROW POSITION [flags of fairseq-train]
#
# ROW       a reuse map of four layers: 1,1,1,1 (the baseline) 2,1,1,1 1,2,1,1 1,1,2,1 1,1,1,2 1,1,2,4 1,2,2,3 2,2,2,2
#           3,2,2,1 4,2,1,1 (all of Table 1); block2, the stack twice with the embedding added again;
#           unshared8, eight layers that run once: as many passes as the maps that sum to 8, twice the parameters. The
#           control with half the layers is the baseline.
# POSITION  none, rope, learned, alibi
# SCALE     smoke  32 wide, texts of 64 pieces, 20 updates: a minute; shows that the recipe works, no more
#           small  the paper's model, texts of 256, 240 updates of 4,096 pieces, once through the book
#           paper  the paper's recipe: texts of 1,024, 7,600 updates of 65,536. For a GPU and a CORPUS of 500M pieces, of
#                  which the paper has FineWeb-Edu; its perplexities there at 1,024 are 14.38 (1,1,1,1 alibi) and 13.63
#                  (4,2,1,1 alibi). On the book this would be 500 epochs.
# The test contexts are half the length of training, that length, twice and four times it; with learned positions the first
# two. SEED, OUT, DRY_RUN, THREADS as in recipes/common.sh; DATA_ROOT and CORPUS as in prepare.sh
# PRECISION bf16 (default) or fp32
# RESULTS   the table that the run is appended to
source "$(dirname "$0")/../common.sh"

[ $# -ge 2 ] || fail "usage: $0 ROW POSITION [flags of fairseq-train] (both are listed at the head of this file)"
ROW=$1 POSITION=$2
SCALE=${SCALE:-smoke}
PRECISION=${PRECISION:-bf16}
CALL="SCALE=$SCALE SEED=$SEED recipes/ilr/train.sh $*"
shift 2

# The one place where scales differ.
case $SCALE in
smoke) WIDTH=32 TEXT=64 BATCH=16 EVERY=1 UPDATES=20 ;;
small) WIDTH=128 TEXT=256 BATCH=16 EVERY=1 UPDATES=240 ;;
paper) WIDTH=128 TEXT=1024 BATCH=32 EVERY=2 UPDATES=7600 ;;
*) fail "SCALE=$SCALE: must be smoke, small or paper" ;;
esac
case $PRECISION in
bf16) NUMBERS=(--bf16) ;;
fp32) NUMBERS=() ;;
*) fail "PRECISION=$PRECISION: must be bf16 or fp32" ;;
esac
case $ROW in
block2) MODEL=(--block-loops 2 --inject-embedding) ;;
unshared8) MODEL=(--decoder-layers 8 --reuse-map 1,1,1,1,1,1,1,1) ;;
*,*,*,*) MODEL=(--reuse-map "$ROW") ;;
*) fail "ROW=$ROW: must be a reuse map of four layers, block2 or unshared8" ;;
esac
case $POSITION in
none | rope | alibi) CONTEXTS=($((TEXT / 2)) "$TEXT" $((2 * TEXT)) $((4 * TEXT))) ;;
learned) CONTEXTS=($((TEXT / 2)) "$TEXT") ;;
*) fail "POSITION=$POSITION: must be none, rope, learned or alibi" ;;
esac
MODEL+=(--arch ilr_small --decoder-embed-dim $WIDTH --position "$POSITION")

RUN=$OUT/ilr/train/$SCALE/$ROW-$POSITION/s$SEED
BIN=$OUT/ilr/bin
if [ "$SCALE" = smoke ]; then RESULTS=${RESULTS:-$OUT/ilr/results.csv}; fi
RESULTS=${RESULTS:-$ROOT/recipes/ilr/results.csv}

training() {
    run_training "$RUN/train.log" "$BIN" --user-dir "$ROOT/fairseq_plugin" --task language_modeling "${MODEL[@]}" \
        --save-dir "$RUN/checkpoints" --seed "$SEED" --tokens-per-sample $TEXT --sample-break-mode none \
        --batch-size $BATCH --update-freq $EVERY --criterion cross_entropy --optimizer adam --adam-betas "(0.9, 0.999)" \
        --weight-decay 0.01 --lr 3e-3 --lr-scheduler cosine --warmup-updates $((UPDATES / 10)) --clip-norm 1.0 \
        --max-update $UPDATES --required-batch-size-multiple 1 --update-epoch-batch-itr True --no-epoch-checkpoints \
        --save-interval-updates $((UPDATES / 4)) --keep-interval-updates 1 --log-interval $((UPDATES / 20)) \
        "${NUMBERS[@]}" "${FLAGS[@]}"
}

evaluation() {
    local context
    for context in "${CONTEXTS[@]}"; do
        run_into "$RUN/eval-$context.log" fairseq-eval-lm "$BIN" --user-dir "$ROOT/fairseq_plugin" \
            --task language_modeling --path "$RUN/checkpoints/checkpoint_last.pt" --gen-subset test \
            --tokens-per-sample "$context" --sample-break-mode none --max-tokens 4096
    done
}

scoring() {
    run_into "$RUN/flops.json" python "$TOOLS/flops.py" --symbols 1024 --text $TEXT \
        --updates $UPDATES --texts $((BATCH * EVERY)) -- "${MODEL[@]}"
    run_into "$RUN/scores.json" python "$TOOLS/perplexity.py" "$RUN" --pieces "$OUT/ilr/raw/test.pieces" \
        --contexts "${CONTEXTS[@]}" --more "$RUN/flops.json"
    if [ "$DRY_RUN" != 1 ]; then cat "$RUN/scores.json"; fi
}

OUT=$OUT DRY_RUN=$DRY_RUN "$(dirname "$0")/prepare.sh"
FLAGS=("$@")
RECORD=(--results "$RESULTS" --table "ILR 1" --row "$ROW, $POSITION" --arch ilr_small --scale "$SCALE" --seed "$SEED"
    --command "$CALL" --checkpoint checkpoints/checkpoint_last.pt
    --metrics "${CONTEXTS[@]/#/perplexity_}" training_flops)
once "$RUN" training evaluation scoring
