#!/usr/bin/env bash
# Prints the commands of a language model's row: prepare the text, train, evaluate at every context length, score. All
# scales are in tables.toml: LENGTHS are the context lengths, TEXT is the text length in training. If TESTED names several
# sets, SET in the file name PIECES stands for each of them.
source "$(dirname "$0")/../common.sh"

TASK=(--user-dir "$ROOT/fairseq_plugin" --task language_modeling)
read -r -a settings <<<"${DATA_SETTINGS:-}"
read -r -a contexts <<<"${LENGTHS:-$TEXT}"
array_of EVALUATE evaluate
batches
prepare "$DATA" "${settings[@]}"

heading training
train_fairseq "$OUT/$BIN" "${TASK[@]}" --log-format json --tokens-per-sample "$TEXT" --sample-break-mode none \
    "${BATCHES[@]}" --max-update "$UPDATES" --no-epoch-checkpoints --keep-interval-updates 1 \
    --save-interval-updates "${SAVE:-$((UPDATES < 4 ? 1 : UPDATES / 4))}" \
    --log-interval "${LOG:-$((UPDATES < 20 ? 1 : UPDATES / 20))}" "$@"

if [ "$DATA" = ilr/prepare ]; then run cp "$OUT/ilr/raw/bpe.model" "$RUN/checkpoints/sentencepiece.bpe.model"; fi

# evaluated NAME SET CONTEXT: print the stage that evaluates a set at one context length.
evaluated() {
    heading "evaluation-$1"
    run_into "$RUN/eval-$1.log" fairseq-eval-lm "$OUT/$BIN" "${TASK[@]}" \
        --path "$RUN/checkpoints/checkpoint_${CHECKPOINT:-best}.pt" --gen-subset "$2" --tokens-per-sample "$3" \
        --sample-break-mode none "${evaluate[@]}"
}

# The last set is evaluated at every context length, the others only at the length of training.
read -r -a tested <<<"${TESTED:-test}"
last=${tested[-1]} more=()
for set in "${tested[@]}"; do
    if [ "$set" != "$last" ]; then
        evaluated "$set" "$set" "$TEXT"
        more+=(--also "$set=$OUT/${PIECES//SET/$set}")
    fi
done
for context in "${contexts[@]}"; do evaluated "$context" "$last" "$context"; done

if [ "${FLOPS:-0}" = 1 ]; then
    heading counting
    run_into "$RUN/flops.json" python "$ROOT/recipes/metrics/flops.py" --symbols "$SYMBOLS" --text "$TEXT" \
        --updates "$UPDATES" --texts $((MICRO_BATCH * ACCUMULATE * GPUS)) -- --arch "$ARCH" "$@"
    more+=(--more "$RUN/flops.json")
fi
heading scoring
run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/perplexity.py" "$RUN" --pieces "$OUT/${PIECES//SET/$last}" \
    --contexts "${contexts[@]}" "${more[@]}"
