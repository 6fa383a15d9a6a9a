#!/usr/bin/env bash
# Multi30k, German to English: exports a trained `cycle` model to CTranslate2 and reports its size and score there.
#
#   recipes/multi30k/export.sh [flags of fairseq-train]
#
# Trains the row `cycle` of train.sh (with the flags) unless that is done, unshares it into fairseq's own `transformer`,
# converts that with CTranslate2's own converter (pip install ctranslate2) in float32 and int8, and decodes the test set with
# each like fairseq-generate. A copy whose layers are all slightly different shows the size of a model without sharing.
# SCALE, SEED, OUT, DRY_RUN, THREADS, PRECISION as in train.sh
# Writes $OUT/multi30k/export/SCALE/sSEED/report.md.
source "$(dirname "$0")/../common.sh"

SCALE=${SCALE:-smoke} SEED=${SEED:-1}
HERE=$ROOT/recipes/multi30k
BIN=$OUT/multi30k/bin-6000
RUN=$OUT/multi30k/train/$SCALE/cycle/s$SEED
EXPORT=$OUT/multi30k/export/$SCALE/s$SEED
REFERENCE=$OUT/multi30k/raw/test_2016_flickr.en
SOURCE=$OUT/multi30k/pieces-6000/test_2016_flickr.de

unsharing() {
    run python -m fairseq_plugin.convert unshare "$RUN/average.pt" "$EXPORT/unshared.pt"
    run python "$HERE/export.py" apart "$EXPORT/unshared.pt" "$EXPORT/apart.pt"
}

# The converter loads checkpoints safely; --user-dir allows it to read the options in fairseq's checkpoints.
conversion() {
    local name type
    for name in unshared apart; do
        for type in float32 int8; do
            run ct2-fairseq-converter --model_path "$EXPORT/$name.pt" --data_dir "$BIN" --source_lang de --target_lang en \
                --user_dir "$ROOT/fairseq_plugin" --quantization $type --output_dir "$EXPORT/$name-$type" --force
        done
    done
}

decoding() {
    local type
    run_into "$EXPORT/fairseq.log" fairseq-generate "$BIN" --user-dir "$ROOT/fairseq_plugin" \
        --path "$EXPORT/unshared.pt" --source-lang de --target-lang en --gen-subset test --beam 5 --max-len-a 1.5 \
        --max-len-b 10 --max-tokens 4096 --remove-bpe sentencepiece --required-batch-size-multiple 1
    for type in float32 int8; do
        run_into "$EXPORT/$type.log" python "$HERE/export.py" translate "$EXPORT/unshared-$type" "$SOURCE"
    done
}

scoring() {
    local name
    for name in fairseq float32 int8; do
        run_into "$EXPORT/$name.json" python "$ROOT/recipes/metrics/score.py" "$EXPORT/$name.log=$REFERENCE"
    done
    run_into "$EXPORT/report.md" python "$HERE/export.py" report "$RUN" "$EXPORT"
    if [ "$DRY_RUN" != 1 ]; then cat "$EXPORT/report.md"; fi
}

if [ "$SCALE" = smoke ] && [ ! -d "${DATA_ROOT:-/nonexistent}/multi30k" ]; then
    fail "DATA_ROOT=${DATA_ROOT:-}: must name a folder that holds multi30k at scale smoke, which has no other German text"
fi
need ct2-fairseq-converter
PAIR='' TESTS='' SCALE=$SCALE OUT=$OUT SEED=$SEED DRY_RUN=$DRY_RUN "$HERE/train.sh" cycle "$@"
stages "$EXPORT" unsharing conversion decoding scoring
