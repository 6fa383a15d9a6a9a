#!/usr/bin/env bash
# Kausik, Figures 2(a) and 2(b) of the June text: validation and training loss of the rows of Table 2 over millions of input
# tokens. Both are measured in evaluation mode, the training loss on part of the training text.
#   recipes/kausik/figure2.sh [options of recipes/figures/curves.py]
source "$(dirname "$0")/../common.sh"

SCALE=${SCALE:-smoke}
ROWS="regular_1 regular_6 recurrent_positions recurrent"
runs kausik/table2 train.log $ROWS
for panel in a:valid b:valid1; do
    reference=()
    if [ "$panel" = a:valid ]; then reference=(--reference "the paper's six regular layers=1.4815"); fi
    run python "$ROOT/recipes/figures/curves.py" "${RUNS[@]}" --x tokens --stage "${panel#*:}" --nats \
        --unit "nats a character" --title "tiny Shakespeare, scale $SCALE" "${reference[@]}" \
        --output "$OUT/kausik/figure2${panel%:*}-$SCALE.svg" "$@"
done
