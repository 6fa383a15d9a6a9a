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
# PRECISION  bf16 (default), fp32 for processors without bf16 instructions, or fp16 on a GPU
# RESULTS    the table that the run is appended to
#
# Two runs at THREADS=1 side by side finish more than one after the other at THREADS=2.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/translation.sh"

[ $# -ge 1 ] || fail "usage: $0 ROW [flags of fairseq-train] (rows are listed at the head of this file)"
ROW=$1
SCALE=${SCALE:-smoke}
CALL="SCALE=$SCALE SEED=$SEED recipes/multi30k/train.sh $*"
shift

source "$(dirname "$0")/lib/settings.sh"
case $ROW in
ringformer | one_wide_ffn | vanilla) ARCH=${ROW}_base FLAGS=("${layers[@]}") ;;
vanilla_half) ARCH=vanilla_base FLAGS=(--encoder-layers "$half" --decoder-layers "$half") ;;
sequence | cycle | cycle_rev) ARCH=$ROW FLAGS=("${layers[@]}" "${unique[@]}") ;;
*) ARCH=$ROW FLAGS=("${layers[@]}") ;;
esac
FLAGS+=("$@")

RUN=$OUT/multi30k/train/$SCALE/$ROW/s$SEED
recording "$ROW" "$ARCH"
prepare
once "$RUN" translation_training translation_averaging translation_decoding translation_scoring
