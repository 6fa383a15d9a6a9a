#!/usr/bin/env bash
# Multi30k, German to English: fairseq's own `transformer`, trained, becomes a loop over half its layers, and is trained on.
#
#   recipes/multi30k/share.sh RANK [flags of fairseq-train]
#
# RANK  of the term that each pass keeps on every projection, up to the width, or none (Relaxed Recursive Transformers,
#       arXiv:2410.20672)
#
# Trains fairseq's `transformer` as train.sh does, where that has not been done (flags go to that training), ties its layers
# in the order of CYCLE, scores the test set, trains on for a few updates, and scores it again: the rows shared_RANK and
# shared_RANK_tuned.
# SCALE, SEED, OUT, DRY_RUN, THREADS, PIECES, PRECISION, RESULTS as in train.sh
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/translation.sh"

[ $# -ge 1 ] || fail "usage: $0 RANK [flags of fairseq-train], where RANK is a number or none"
RANK=$1
SCALE=${SCALE:-smoke}
CALL="SCALE=$SCALE SEED=$SEED recipes/multi30k/share.sh $*"
shift
export TABLE="multi30k sharing" # of the host's model too, whose budget the flags may change
source "$(dirname "$0")/lib/settings.sh"
width=${SETTINGS[1]}
[[ $RANK = none || ($RANK =~ ^[1-9][0-9]*$ && $RANK -le $width) ]] ||
    fail "RANK=$RANK: must be none, or a whole number from 1 to the width, $width"

case $SCALE in
smoke) TUNING=(--max-update 10 --warmup-updates 2 --save-interval-updates 2) ;;
small) TUNING=(--max-update 200 --warmup-updates 20 --save-interval-updates 20 --lr 3e-4) ;;
gpu) TUNING=(--max-update 1200 --warmup-updates 100 --save-interval-updates 100 --lr 3e-4) ;;
esac
TRAINED=$OUT/multi30k/train/$SCALE/transformer/s$SEED/average.pt
SHARED=$OUT/multi30k/share/$SCALE/$RANK/s$SEED

sharing() {
    local terms=()
    if [ "$RANK" != none ]; then terms=(--rank "$RANK"); fi
    run python -m fairseq_plugin.convert share "$TRAINED" "$RUN/average.pt" --unique-layers "$half" "${terms[@]}"
}

SCALE=$SCALE OUT=$OUT SEED=$SEED PIECES=$PIECES DRY_RUN=$DRY_RUN "$(dirname "$0")/train.sh" transformer "$@"

RUN=$SHARED/before
recording "shared_$RANK" cycle
once "$RUN" sharing translation_decoding translation_scoring

RUN=$SHARED/after
ARCH=cycle FLAGS=("${layers[@]}" "${unique[@]}" --finetune-from-model "$SHARED/before/average.pt" "${TUNING[@]}")
if [ "$RANK" != none ]; then FLAGS+=(--residual-rank "$RANK"); fi
recording "shared_${RANK}_tuned" cycle
once "$RUN" translation_training translation_averaging translation_decoding translation_scoring
