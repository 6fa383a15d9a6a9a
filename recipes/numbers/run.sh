#!/usr/bin/env bash
# Translation demo: English number words to German, with fairseq's own tools from training to scoring.
#
#   recipes/numbers/run.sh [flags of fairseq-train]
#
# The model is also trained with one pass on each side.
#
# ARCH   a tiny architecture (default ringformer_tiny)
# SCALE  demo   numbers below 10,000, 8,000 of them for training; 2.5 minutes of training on 2 cores (default)
#        smoke  numbers below 1,000 and 60 updates, under a minute; only shows that the recipe works
# SEED (default 1); OUT, DRY_RUN, THREADS as in recipes/common.sh
# Expected at scale demo: exact match of about 98 % on 1,000 numbers not seen in training.
source "$(dirname "$0")/../common.sh"

ARCH=${ARCH:-ringformer_tiny} SCALE=${SCALE:-demo} SEED=${SEED:-1}
case $SCALE in
smoke) PASSES=2 UPDATES=60 WARMUP=20 ;;
demo) PASSES=6 UPDATES=300 WARMUP=60 ;;
*) fail "SCALE=$SCALE: must be demo or smoke" ;;
esac

DATA=$OUT/numbers/$SCALE
RUNS=$OUT/numbers/run/$SCALE

training() {
    log "$UPDATES updates, logged every 25 updates"
    run_logged "$RUN/train.log" fairseq-train "$DATA/bin" "${MODEL[@]}" --arch "$ARCH" --save-dir "$RUN/checkpoints" \
        --distributed-world-size 1 --seed "$SEED" --dropout 0 --criterion cross_entropy \
        --optimizer adam --adam-betas "(0.9, 0.98)" --lr 2e-3 --lr-scheduler cosine --warmup-updates $WARMUP \
        --clip-norm 1.0 --max-tokens 1024 --max-update $UPDATES --required-batch-size-multiple 1 \
        --update-epoch-batch-itr True --no-epoch-checkpoints --log-interval 25 "${FLAGS[@]}"
    run cp "$DATA/pieces.model" "$RUN/checkpoints/sentencepiece.bpe.model" # where fairseq's hub interface looks
}

decoding() {
    run_into "$RUN/generate.log" fairseq-generate "$DATA/bin" --user-dir "$ROOT/fairseq_plugin" \
        --path "$RUN/checkpoints/checkpoint_last.pt" --gen-subset test --beam 5 --max-len-b 100 --max-tokens 8000 \
        --remove-bpe sentencepiece --required-batch-size-multiple 1
}

# A German number is one word, so BLEU counts characters.
scoring() {
    run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/score.py" "$RUN/generate.log=$DATA/test.de" --tokenize char
}

# learn NAME PASSES: train and score the model with so many passes on each side.
learn() {
    RUN=$RUNS/$1/s$SEED
    MODEL=(--user-dir "$ROOT/fairseq_plugin" --source-lang en --target-lang de --encoder-layers "$2" --decoder-layers "$2")
    stages "$RUN" training decoding scoring
}

SCALE=$SCALE OUT=$OUT DRY_RUN=$DRY_RUN "$(dirname "$0")/prepare.sh"
learn "$ARCH" $PASSES
learn "${ARCH}_once" 1
run python "$ROOT/recipes/numbers/report.py" "$RUNS/$ARCH/s$SEED" --once "$RUNS/${ARCH}_once/s$SEED" --data "$DATA" --arch "$ARCH" \
    --encoder-layers $PASSES --decoder-layers $PASSES "${FLAGS[@]}"
