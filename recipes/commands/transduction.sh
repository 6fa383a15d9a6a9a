#!/usr/bin/env bash
# Prints the commands of a row that maps sequences to sequences: prepare the data, train, average checkpoints, decode every test
# set, score: exact matches or, with SCORE=pronunciation, the error rates of one set. All scales are in tables.toml.
source "$(dirname "$0")/../common.sh"

FOLDER=$OUT/data/$DATA${SET:+/$SET} BIN=$FOLDER/bin
read -r -a PAIR <<<"$LANGUAGES"
array_of AVERAGE average
array_of SEARCH search
batches
reference=${PAIR[1]} metric=(score.py --exact)
if [ "${SCORE:-}" = pronunciation ]; then reference=references metric=(pronunciation.py); fi
prepare "$DATA" ${SET:+"SET=$SET"}

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
    scored+=("$RUN/generate-$name.log=$FOLDER/raw/$subset.$reference")
done <<<"$TESTS"
heading scoring
run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/${metric[0]}" "${scored[@]}" "${metric[@]:1}"
