#!/usr/bin/env bash
# Prints the commands of a row that uses one of the plugin's own tasks and is scored per text: prepare the data, if the task
# reads any, train, score. All scales are in tables.toml.
source "$(dirname "$0")/../common.sh"

data=()
read -r -a settings <<<"${DATA_SETTINGS:-}"
batches
if [ "${DATA:-}" = cifar10/prepare ]; then
    BIN=cifar10/$CIFAR10${DATA_SETTINGS:+-${DATA_SETTINGS#SIZE=}}
    if [ "$CIFAR10" = digits ]; then DATA=digits/prepare BIN=digits/images; fi
fi
if [ -n "${DATA:-}" ]; then
    prepare "$DATA" "CIFAR10=$CIFAR10" "${settings[@]}"
    data=("$OUT/$BIN")
fi

heading training
train_fairseq "${data[@]}" --task "$TASK" ${TEXT:+--tokens-per-sample "$TEXT"} --log-format json "${BATCHES[@]}" \
    --max-update "$UPDATES" --no-epoch-checkpoints ${SAVE:+--save-interval-updates "$SAVE" --keep-interval-updates 1} \
    --log-interval "$LOG" "$@"
heading scoring
trained=$RUN/checkpoints/checkpoint_${CHECKPOINT:-best}.pt
if [ -n "${SCORE:-}" ]; then
    read -r -a score <<<"$SCORE"
    run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/automaton.py" --path "$trained" "${score[@]}"
else
    run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/answers.py" "${data[@]}" --path "$trained" \
        --subset "${SUBSET:-valid}" --batch "$BATCH" # of an update: the published standard error depends on it
fi
