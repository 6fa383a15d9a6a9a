#!/usr/bin/env bash
# SReT, Figure 7: BLEU and losses over the course of training for the vanilla transformer, for recursion and for recursion
# without coefficients, on WMT14 English to German.
#   recipes/sret/figure7.sh [options of recipes/figures/curves.py]
# Below scale paper, the data set is Multi30k or, at scale smoke, words and their phonemes.
source "$(dirname "$0")/../common.sh"

runs curves.py sret/translation train.log wmt_once wmt wmt_no_lrc
draw() { run python "$ROOT/recipes/figures/curves.py" "${RUNS[@]}" "$@"; }
draw --y valid_bleu --unit "greedy" --output "$OUT/sret/translation-bleu-$SCALE.svg" "$@"
draw --stage train_inner --y nll_loss --nats --unit "nats a piece" \
    --output "$OUT/sret/translation-training-$SCALE.svg" "$@"
draw --y valid_nll_loss --nats --unit "nats a piece" --output "$OUT/sret/translation-validation-$SCALE.svg" "$@"
