#!/usr/bin/env bash
# Kausik, Figures 2(a) and 2(b) of both texts: validation and training loss of four models, of June's Table 2 or July's Table 3,
# over millions of input tokens. (July's figures show operations instead: for each model, a multiple of its tokens.) Both losses
# are measured in evaluation mode, the training loss on part of the training text.
#   recipes/kausik/figure2.sh june|july [options of recipes/figures/curves.py]
source "$(dirname "$0")/../common.sh"

TEXT=${1:-}
case $TEXT in
june) TABLE=table2 ;;
july) TABLE=table3 ;;
*) fail "usage: $0 june|july [options of recipes/figures/curves.py]" ;;
esac
shift
FLAGS=("$@")
runs curves.py "kausik/$TABLE" train.log regular_1 regular_6 recurrent_positions recurrent
for panel in a:valid b:valid1; do
    reference=()
    if [ "$panel" = a:valid ]; then reference=(--reference "the paper's six regular layers=1.4815"); fi
    run python "$ROOT/recipes/figures/curves.py" "${RUNS[@]}" --x tokens --stage "${panel#*:}" --nats \
        --unit "nats a character" --title "tiny Shakespeare, scale $SCALE" "${reference[@]}" \
        --output "$OUT/kausik/$TEXT-figure2${panel%:*}-$SCALE.svg" "$@"
done
