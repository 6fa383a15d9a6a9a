#!/usr/bin/env bash
# Kausik, Figures 4(a) and 4(b) of the July text: validation loss and accuracy on selective copying (Table 6) over updates. Their
# spikes are where the noise doubles. The paper also shows those of the training.
#   recipes/kausik/figure4.sh [options of recipes/figures/curves.py]
source "$(dirname "$0")/../common.sh"

runs curves.py kausik/table6 train.log selective
draw() { run python "$ROOT/recipes/figures/curves.py" "${RUNS[@]}" --title "selective copying, scale $SCALE" "$@"; }
draw --nats --output "$OUT/kausik/july-figure4a-$SCALE.svg" "$@"
draw --y valid_accuracy --unit % --output "$OUT/kausik/july-figure4b-$SCALE.svg" "$@"
