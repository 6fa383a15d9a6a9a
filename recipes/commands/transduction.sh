#!/usr/bin/env bash
# Prints the commands of a row that maps sequences to sequences and is scored by exact matches: prepare the data, train, average
# checkpoints, decode every test set, score. All scales are in tables.toml.
source "$(dirname "$0")/../common.sh"

BIN=$OUT/data/$DATA/bin
read -r -a PAIR <<<"$LANGUAGES"
array_of AVERAGE average
array_of SEARCH search
batches
prepare "$DATA"

heading training
train_fairseq "$BIN" --source-lang "${PAIR[0]}" --target-lang "${PAIR[1]}" --log-format json "${BATCHES[@]}" \
    --max-update "$UPDATES" --no-epoch-checkpoints --save-interval-updates "$SAVE" --log-interval "$LOG" "$@"
heading averaging
run python -m fairseq_plugin.average --inputs "$RUN/checkpoints" "${average[@]}" --output "$RUN/average.pt"

scored=()
while read -r name subset; do
    heading "decoding-$name"
    run_into "$RUN/generate-$name.log" fairseq-generate "$BIN" --user-dir "$ROOT/fairseq_plugin" \
        --path "$RUN/average.pt" --source-lang "${PAIR[0]}" --target-lang "${PAIR[1]}" --gen-subset "$subset" \
        --required-batch-size-multiple 1 "${search[@]}"
    scored+=("$RUN/generate-$name.log=$OUT/data/$DATA/raw/$subset.${PAIR[1]}")
done <<<"$TESTS"
heading scoring
run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/score.py" "${scored[@]}" --exact
