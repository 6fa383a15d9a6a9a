#!/usr/bin/env bash
# Prints the commands of a speech row: prepare the recordings, train, average checkpoints, decode every test set, count word
# errors. All scales are in tables.toml. If SHORT is set, training starts with that many updates on the short sequences
# only; otherwise attention takes long to find an alignment.
source "$(dirname "$0")/../common.sh"

TASK=(--user-dir "$ROOT/fairseq_plugin" --task speech_to_text --config-yaml config.yaml)
read -r -a settings <<<"${DATA_SETTINGS:-}"
array_of SEARCH search
batches
prepare "$DATA" "${settings[@]}"

# train_on SETS UPDATES FLAGS...: print the command that trains on these sets up to this number of updates.
train_on() {
    train_fairseq "$OUT/$BIN" "${TASK[@]}" --train-subset "$1" --valid-subset "$VALID" "${BATCHES[@]}" --max-update "$2" \
        --no-epoch-checkpoints --save-interval-updates "$SAVE" --keep-interval-updates "$KEEP" \
        --log-interval $((SAVE < 4 ? 1 : SAVE / 4)) "${@:3}"
}

if [ -n "${SHORT:-}" ]; then
    heading training-short
    train_on train-short "$SHORT" "$@"
fi
heading training
train_on "$TRAINED" "$UPDATES" "$@"
heading averaging
run python -m fairseq_plugin.average --inputs "$RUN/checkpoints" --num-update-checkpoints "$KEEP" --output "$RUN/average.pt"
names=()
while read -r name subset; do
    heading "decoding-$name"
    run_into "$RUN/$name.log" fairseq-generate "$OUT/$BIN" "${TASK[@]}" --path "$RUN/average.pt" --gen-subset "$subset" \
        --max-tokens 50000 --scoring wer --required-batch-size-multiple 1 "${search[@]}"
    names+=("$name")
done <<<"$TESTS"
heading scoring
run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/score_speech.py" "$RUN" "$OUT/$BIN" "${names[@]}"
