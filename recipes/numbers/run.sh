#!/usr/bin/env bash
# The demo: English number words to German ones, with every tool of the host.
#
#   recipes/numbers/run.sh [flags of fairseq-train]
#
# ARCH   the architecture, one of the tiny size (default ringformer_tiny)
# SCALE  demo   numbers below 100,000, 30,000 of them for training; 3 minutes of training on one core (default)
#        smoke  numbers below 1,000 and 60 updates: under a minute; shows that the recipe works, no more
# SEED, OUT, DRY_RUN, THREADS as in recipes/common.sh
# Expected at scale demo: exact match above 99 % on 1,000 numbers that training never showed.
source "$(dirname "$0")/../common.sh"

ARCH=${ARCH:-ringformer_tiny}
SCALE=${SCALE:-demo}

# The one place where scales differ.
case $SCALE in
smoke) LIMIT=1000 TRAIN=800 HELD=100 PIECES=60 PASSES=2 UPDATES=60 WARMUP=20 ;;
demo) LIMIT=100000 TRAIN=30000 HELD=1000 PIECES=120 PASSES=6 UPDATES=450 WARMUP=150 ;;
*) fail "SCALE=$SCALE: must be demo or smoke" ;;
esac

DATA=$OUT/numbers/$SCALE
RUN=$OUT/numbers/run/$SCALE/$ARCH/s$SEED
MODEL=(--user-dir "$ROOT/fairseq_plugin" --source-lang en --target-lang de
    --encoder-layers $PASSES --decoder-layers $PASSES)

corpus() {
    run python "$ROOT/recipes/numbers/data.py" "$DATA" --limit $LIMIT --train $TRAIN --valid $HELD --test $HELD
}

# Pieces of at most 9 characters come out as the parts of the words: einund zwanzig tausend drei hundert zwölf.
segmentation() {
    local set language
    run python "$TOOLS/segment.py" train "$DATA/pieces.model" --pieces $PIECES --longest 9 --kind unigram \
        "$DATA/train.en" "$DATA/train.de"
    for set in train valid test; do
        for language in en de; do
            run python "$TOOLS/segment.py" encode "$DATA/pieces.model" "$DATA/$set.$language" "$DATA/$set.pieces.$language"
        done
    done
}

# The host refuses to write over a dictionary, so what an interrupted call left is removed.
binarization() {
    run rm -rf "$DATA/bin"
    run_into "$DATA/preprocess.log" fairseq-preprocess --user-dir "$ROOT/fairseq_plugin" \
        --source-lang en --target-lang de --joined-dictionary --destdir "$DATA/bin" \
        --trainpref "$DATA/train.pieces" --validpref "$DATA/valid.pieces" --testpref "$DATA/test.pieces"
}

training() {
    run_training "$RUN/train.log" "$DATA/bin" "${MODEL[@]}" --arch "$ARCH" --save-dir "$RUN/checkpoints" --seed "$SEED" \
        --dropout 0 --criterion cross_entropy \
        --optimizer adam --adam-betas "(0.9, 0.98)" --lr 1e-3 --lr-scheduler cosine --warmup-updates $WARMUP \
        --clip-norm 1.0 --max-tokens 2048 --max-update $UPDATES --required-batch-size-multiple 1 \
        --update-epoch-batch-itr True --no-epoch-checkpoints --log-interval 50 "${FLAGS[@]}"
}

decoding() {
    run_into "$RUN/generate.log" fairseq-generate "$DATA/bin" --user-dir "$ROOT/fairseq_plugin" \
        --path "$RUN/checkpoints/checkpoint_last.pt" --gen-subset test --beam 5 --max-len-b 100 --max-tokens 8000 \
        --remove-bpe sentencepiece --required-batch-size-multiple 1
}

# A German number is one word, so BLEU counts characters.
scoring() {
    run_into "$RUN/scores.json" python "$TOOLS/score.py" "$RUN/generate.log" "$DATA/test.de" \
        --hypotheses "$RUN/hypotheses.de" --tokenize char
}

# This model, and the same with a block for every pass.
counting() {
    run_into "$RUN/parameters.json" python "$TOOLS/parameters.py" "$ARCH" vanilla_tiny -- \
        "$DATA/bin" "${MODEL[@]}" "${FLAGS[@]}"
}

report() {
    run python "$ROOT/recipes/numbers/report.py" "$RUN" --data "$DATA" --arch "$ARCH"
}

if [ "$DRY_RUN" != 1 ]; then mkdir -p "$DATA"; fi
need fairseq-train
stage "$DATA" corpus
stage "$DATA" segmentation
stage "$DATA" binarization
FLAGS=("$@")
RECORD=(--results "$OUT/numbers/results.csv" --table numbers --row "$ARCH" --arch "$ARCH" --scale "$SCALE" --seed "$SEED"
    --command "ARCH=$ARCH SCALE=$SCALE SEED=$SEED recipes/numbers/run.sh $*"
    --checkpoint checkpoints/checkpoint_last.pt --metrics exact_match bleu)
once "$RUN" training decoding scoring counting
report
