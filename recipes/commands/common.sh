# Shared by the scripts of this folder, which records/run.py calls. Each prints the commands of one row, a line each, under
# lines "# STAGE", and runs nothing itself. A row's settings in tables.toml arrive as variables with names in capitals, the
# trainer's flags as arguments, and besides
#   ROOT, OUT, RUN     the repository, where all output goes, and the folder of this run
#   SCALE, SEED, ARCH, PRECISION
#   KWARGS             key=value of the model's constructor, a line each
#   MICRO_BATCH, ACCUMULATE     what a process takes at once, and how many times for an update
#   GPUS, NODES, NODE_RANK, MASTER_ADDR, MASTER_PORT
set -euo pipefail

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

stage() { echo "# $1"; }

# A command as one line that a shell reads back as it was.
command_line() { printf '%q ' "$@" | sed 's/ $//'; }

say() {
    command_line "$@"
    echo
}

# say_into FILE COMMAND...: its standard output goes to a file.
say_into() { printf '%s > %q\n' "$(command_line "${@:2}")" "$1"; }

# prepare SCRIPT [NAME=VALUE...]: the preparation of a data set, a script of recipes/ or, without a slash, of recipes/data.
prepare() {
    local script=$1
    if [[ $script != */* ]]; then script=data/$script; fi
    stage preparation
    say env DRY_RUN=0 OUT="$OUT" ${DATA_ROOT:+"DATA_ROOT=$DATA_ROOT"} "${@:2}" "$ROOT/recipes/$script.sh"
}

# A trainer's start, by torchrun where training is distributed.
launch() {
    LAUNCH=("$@")
    if [ $((GPUS * NODES)) -gt 1 ]; then
        LAUNCH=(torchrun --nnodes "$NODES" --nproc_per_node "$GPUS" --node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR"
            --master_port "$MASTER_PORT")
        if [ "$1" = fairseq-train ]; then
            LAUNCH+=(-m fairseq_cli.train --distributed-world-size $((GPUS * NODES)))
        else
            LAUNCH+=("${@:2}")
        fi
    fi
}

# train_fairseq [BIN] FLAGS...: at the row's precision.
train_fairseq() {
    local LAUNCH numbers=() bin=()
    if [ "$PRECISION" != fp32 ]; then numbers=("--$PRECISION"); fi
    if [[ $1 != -* ]]; then bin=("$1") && shift; fi
    launch fairseq-train
    say "${LAUNCH[@]}" "${bin[@]}" --user-dir "$ROOT/fairseq_plugin" --arch "$ARCH" \
        --save-dir "$RUN/checkpoints" --seed "$SEED" --required-batch-size-multiple 1 --update-epoch-batch-itr True \
        "${numbers[@]}" "$@"
}

# BATCHES: the flags of fairseq-train that gather the batch of the table.
batches() {
    local unit=--batch-size
    if [ -n "${TOKENS:-}" ]; then unit=--max-tokens; fi
    BATCHES=($unit "$MICRO_BATCH" --update-freq "$ACCUMULATE")
}

# lines VARIABLE ARRAY: the lines of a variable as an array, which is empty where there are none.
lines() {
    local -n into=$2
    into=()
    if [ -n "${!1:-}" ]; then mapfile -t into <<<"${!1}"; fi
}
