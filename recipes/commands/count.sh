#!/usr/bin/env bash
# Prints the commands of a row that counts operations or measures speed; nothing is trained.
#   COUNT=images    operations per image; with THROUGHPUT (images per batch), also images per second relative to DeiT-Tiny
#   COUNT=training  operations of training a language model: UPDATES of BATCH texts of TEXT tokens, SYMBOLS in the vocabulary
#   COUNT=speed     tokens per second in training steps of TOKENS, alternating for ROUNDS with the architecture BESIDE
source "$(dirname "$0")/../common.sh"

array_of KWARGS kwargs
heading scoring
case $COUNT in
images)
    run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/cost_image.py" "$ARCH" "${kwargs[@]}" \
        ${THROUGHPUT:+--throughput "$THROUGHPUT"} "$@"
    ;;
training)
    run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/flops.py" --symbols "$SYMBOLS" --text "$TEXT" \
        --texts "$BATCH" --updates "$UPDATES" -- --arch "$ARCH" "$@"
    ;;
speed)
    run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/speed.py" "$ARCH" --beside "$BESIDE" --tokens "$TOKENS" \
        --rounds "$ROUNDS" "$@"
    ;;
*) fail "COUNT=$COUNT: must be images, training or speed" ;;
esac
