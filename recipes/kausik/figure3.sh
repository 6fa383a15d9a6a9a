#!/usr/bin/env bash
# Kausik, Figures 3(a) and 3(b) of the July text: validation loss and accuracy on CIFAR-10, pixel by pixel, of the regular model
# and of the recurrent one with random windows (Table 4), over updates. The paper has a picture per model, with curves of the
# training, too; here it is one per quantity.
#   recipes/kausik/figure3.sh [options of recipes/figures/curves.py]
source "$(dirname "$0")/../common.sh"

runs curves.py kausik/table4 train.log regular drawn_windows
draw() { run python "$ROOT/recipes/figures/curves.py" "${RUNS[@]}" --title "CIFAR-10 as pixels, scale $SCALE" "$@"; }
draw --nats --output "$OUT/kausik/july-figure3-loss-$SCALE.svg" "$@"
draw --y valid_accuracy --unit % --output "$OUT/kausik/july-figure3-accuracy-$SCALE.svg" "$@"
