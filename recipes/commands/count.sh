#!/usr/bin/env bash
# The commands of a row that is counted or timed; nothing is trained.
#   COUNT=images    operations of one image, and with THROUGHPUT (images a batch) images a second beside DeiT-Tiny's
#   COUNT=training  operations of training a language model: UPDATES of BATCH texts, TEXT long, of SYMBOLS symbols
#   COUNT=speed     tokens a second in training steps of TOKENS, in ROUNDS of turns with the architecture BESIDE
source "$(dirname "$0")/common.sh"

lines KWARGS kwargs
stage scoring
case $COUNT in
images)
    say_into "$RUN/scores.json" python "$ROOT/recipes/metrics/cost_image.py" "$ARCH" "${kwargs[@]}" \
        ${THROUGHPUT:+--throughput "$THROUGHPUT"} "$@"
    ;;
training)
    say_into "$RUN/scores.json" python "$ROOT/recipes/metrics/flops.py" --symbols "$SYMBOLS" --text "$TEXT" \
        --texts "$BATCH" --updates "$UPDATES" -- --arch "$ARCH" "$@"
    ;;
speed)
    say_into "$RUN/scores.json" python "$ROOT/recipes/metrics/speed.py" "$ARCH" --beside "$BESIDE" --tokens "$TOKENS" \
        --rounds "$ROUNDS" "$@"
    ;;
*) fail "COUNT=$COUNT: must be images, training or speed" ;;
esac
