#!/usr/bin/env bash
# Multi30k, German to English: train one architecture at one budget, average, decode with beam search, score, record.
#
#   recipes/multi30k/train.sh ROW [flags of fairseq-train]
#
# ROW   ringformer, universal, one_wide_ffn, vanilla, vanilla_half (the same with half the layers: the control that
#       sharing has to beat), sequence, cycle, cycle_rev (half as many unique layers as passes), universal_small; or the
#       name of any other registered architecture. All run with the same widths, passes, batches and updates.
# SCALE smoke  64/256, 2 + 2 passes, 50 updates: under 2 minutes on 2 cores; shows that the recipe works, no more
#       small  256/1024, 4 + 4 passes, 4,000 updates of about 900 target tokens: about 30 minutes on one core
#       gpu    256/1024, 6 + 6 passes, 12,000 updates of about 3,600 target tokens
#       (None of the papers has a row for this corpus, so there is no scale "paper".)
# SEED, OUT, DRY_RUN, THREADS as in recipes/common.sh; DATA_ROOT and PIECES as in prepare.sh
# PRECISION  bf16 (default) or fp32, for processors without bf16 instructions
# RESULTS    the table that the run is appended to
#
# Two runs at THREADS=1 side by side finish more than one after the other at THREADS=2.
source "$(dirname "$0")/../common.sh"

[ $# -ge 1 ] || fail "usage: $0 ROW [flags of fairseq-train] (rows are listed at the head of this file)"
ROW=$1
SCALE=${SCALE:-smoke}
PIECES=${PIECES:-6000}
PRECISION=${PRECISION:-bf16}
CALL="SCALE=$SCALE SEED=$SEED recipes/multi30k/train.sh $*"
shift

# The one place where scales differ.
case $SCALE in
smoke) WIDTH=64 FFN=256 PASSES=2 UPDATES=50 SAVE=10 WARMUP=10 TOKENS=1024 DROPOUT=0.1 ;;
small) WIDTH=256 FFN=1024 PASSES=4 UPDATES=4000 SAVE=200 WARMUP=400 TOKENS=1024 DROPOUT=0.1 ;;
gpu) WIDTH=256 FFN=1024 PASSES=6 UPDATES=12000 SAVE=500 WARMUP=1000 TOKENS=4096 DROPOUT=0.3 ;;
*) fail "SCALE=$SCALE: must be smoke, small or gpu" ;;
esac
case $PRECISION in
bf16) NUMBERS=(--bf16) ;;
fp32) NUMBERS=() ;;
*) fail "PRECISION=$PRECISION: must be bf16 or fp32" ;;
esac

half=$((PASSES / 2))
unique=(--encoder-unique-layers "$half" --decoder-unique-layers "$half")
layers=(--encoder-layers "$PASSES" --decoder-layers "$PASSES")
case $ROW in
ringformer | one_wide_ffn | vanilla) ARCH=${ROW}_base ROW_FLAGS=("${layers[@]}") ;;
vanilla_half) ARCH=vanilla_base ROW_FLAGS=(--encoder-layers "$half" --decoder-layers "$half") ;;
sequence | cycle | cycle_rev) ARCH=$ROW ROW_FLAGS=("${layers[@]}" "${unique[@]}") ;;
*) ARCH=$ROW ROW_FLAGS=("${layers[@]}") ;;
esac

RUN=$OUT/multi30k/train/$SCALE/$ROW/s$SEED
BIN=$OUT/multi30k/bin-$PIECES
if [ "$SCALE" = smoke ]; then RESULTS=${RESULTS:-$OUT/multi30k/results.csv}; fi
RESULTS=${RESULTS:-$ROOT/recipes/multi30k/results.csv}

training() {
    run_training "$RUN/train.log" "$BIN" --user-dir "$ROOT/fairseq_plugin" --arch "$ARCH" \
        --save-dir "$RUN/checkpoints" --source-lang de --target-lang en --seed "$SEED" \
        --encoder-embed-dim $WIDTH --encoder-ffn-embed-dim $FFN --encoder-attention-heads 4 \
        --decoder-embed-dim $WIDTH --decoder-ffn-embed-dim $FFN --decoder-attention-heads 4 \
        --share-all-embeddings --dropout $DROPOUT --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --optimizer adam --adam-betas "(0.9, 0.98)" --lr 1e-3 --lr-scheduler cosine --warmup-updates $WARMUP \
        --clip-norm 1.0 --max-tokens $TOKENS --max-update $UPDATES --required-batch-size-multiple 1 \
        --update-epoch-batch-itr True --no-epoch-checkpoints --save-interval-updates $SAVE \
        --keep-interval-updates 5 --log-interval $((SAVE / 5)) \
        "${NUMBERS[@]}" "${ROW_FLAGS[@]}" "${FLAGS[@]}"
}

averaging() {
    run python -m fairseq_plugin.average --inputs "$RUN/checkpoints" --num-update-checkpoints 5 \
        --output "$RUN/average.pt"
}

decoding() {
    run_into "$RUN/generate.log" fairseq-generate "$BIN" --user-dir "$ROOT/fairseq_plugin" --path "$RUN/average.pt" \
        --source-lang de --target-lang en --gen-subset test --beam 5 --max-len-a 1.5 --max-len-b 10 --max-tokens 4096 \
        --remove-bpe sentencepiece --required-batch-size-multiple 1
}

scoring() {
    run_into "$RUN/scores.json" python "$TOOLS/score.py" "$RUN/generate.log" "$OUT/multi30k/raw/test_2016_flickr.en" \
        --hypotheses "$RUN/hypotheses.en"
    if [ "$DRY_RUN" != 1 ]; then cat "$RUN/scores.json"; fi
}

PIECES=$PIECES OUT=$OUT DRY_RUN=$DRY_RUN "$(dirname "$0")/prepare.sh"
FLAGS=("$@")
RECORD=(--results "$RESULTS" --table multi30k --row "$ROW" --arch "$ARCH" --scale "$SCALE" --seed "$SEED"
    --command "$CALL" --checkpoint average.pt --metrics bleu chrf)
once "$RUN" training averaging decoding scoring
