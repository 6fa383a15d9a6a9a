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
PIECES=${PIECES:-6000}
CALL="SCALE=$SCALE SEED=$SEED recipes/multi30k/train.sh $*"
shift

# Depth by scale; widths and budgets are those of recipes/lib/translation.sh.
case $SCALE in
smoke) PASSES=2 ;;
small) PASSES=4 ;;
gpu) PASSES=6 ;;
*) fail "SCALE=$SCALE: must be smoke, small or gpu" ;;
esac

half=$((PASSES / 2))
unique=(--encoder-unique-layers "$half" --decoder-unique-layers "$half")
layers=(--encoder-layers "$PASSES" --decoder-layers "$PASSES")
case $ROW in
ringformer | one_wide_ffn | vanilla) ARCH=${ROW}_base FLAGS=("${layers[@]}") ;;
vanilla_half) ARCH=vanilla_base FLAGS=(--encoder-layers "$half" --decoder-layers "$half") ;;
sequence | cycle | cycle_rev) ARCH=$ROW FLAGS=("${layers[@]}" "${unique[@]}") ;;
*) ARCH=$ROW FLAGS=("${layers[@]}") ;;
esac
FLAGS+=("$@")

translation_budget "$SCALE"
BIN=$OUT/multi30k/bin-$PIECES PAIR=(de en) TESTS=(test:test) TOKENIZE=13a
REFERENCES=("$OUT/multi30k/raw/test_2016_flickr.en")
RUN=$OUT/multi30k/train/$SCALE/$ROW/s$SEED
if [ "$SCALE" = smoke ]; then RESULTS=${RESULTS:-$OUT/multi30k/results.csv}; fi
RECORD=(--results "${RESULTS:-$ROOT/recipes/multi30k/results.csv}" --table multi30k --row "$ROW" --arch "$ARCH"
    --scale "$SCALE" --seed "$SEED" --command "$CALL" --checkpoint average.pt --metrics bleu chrf)
PIECES=$PIECES OUT=$OUT DRY_RUN=$DRY_RUN "$(dirname "$0")/prepare.sh"
once "$RUN" translation_training translation_averaging translation_decoding translation_scoring
