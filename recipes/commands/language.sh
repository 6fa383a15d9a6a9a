#!/usr/bin/env bash
# The commands of a language model's row: prepare the text, train, evaluate at every context, score. All scales are in
# tables.toml: LENGTHS are the contexts, TEXT the length of a text in training.
source "$(dirname "$0")/common.sh"

TASK=(--user-dir "$ROOT/fairseq_plugin" --task "${TASK:-language_modeling}")
read -r -a settings <<<"${DATA_SETTINGS:-}"
read -r -a contexts <<<"${LENGTHS:-$TEXT}"
lines EVALUATE evaluate
batches
prepare "$DATA" "${settings[@]}"

stage training
train_fairseq "$OUT/$BIN" "${TASK[@]}" --log-format json --tokens-per-sample "$TEXT" --sample-break-mode none \
    "${BATCHES[@]}" --max-update "$UPDATES" --no-epoch-checkpoints --keep-interval-updates 1 \
    --save-interval-updates "${SAVE:-$((UPDATES < 4 ? 1 : UPDATES / 4))}" \
    --log-interval "${LOG:-$((UPDATES < 20 ? 1 : UPDATES / 20))}" "$@"

for context in "${contexts[@]}"; do
    stage "evaluation-$context"
    say_into "$RUN/eval-$context.log" fairseq-eval-lm "$OUT/$BIN" "${TASK[@]}" \
        --path "$RUN/checkpoints/checkpoint_${CHECKPOINT:-best}.pt" --gen-subset "${TESTED:-test}" \
        --tokens-per-sample "$context" --sample-break-mode none "${evaluate[@]}"
done

more=()
if [ "${FLOPS:-0}" = 1 ]; then
    stage counting
    say_into "$RUN/flops.json" python "$ROOT/recipes/metrics/flops.py" --symbols "$SYMBOLS" --text "$TEXT" \
        --updates "$UPDATES" --texts $((MICRO_BATCH * ACCUMULATE * GPUS * NODES)) -- --arch "$ARCH" "$@"
    more=(--more "$RUN/flops.json")
fi
stage scoring
if [ "${MEASURE:-perplexity}" = loss ]; then
    say_into "$RUN/scores.json" python "$ROOT/recipes/metrics/loss.py" "$RUN/eval-$TEXT.log" --symbols "$EVALUATED"
else
    say_into "$RUN/scores.json" python "$ROOT/recipes/metrics/perplexity.py" "$RUN" --pieces "$OUT/$PIECES" \
        --contexts "${contexts[@]}" "${more[@]}"
fi
