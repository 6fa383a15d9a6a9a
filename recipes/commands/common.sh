# Functions for the scripts of this folder, which records/commands.py calls. Each script prints the commands of one row, one per
# line, under lines "# STAGE", and runs nothing itself. The trainer's flags are its arguments. The row's settings in
# tables.toml are passed as environment variables with names in capitals, together with
#   ROOT, OUT, RUN     the repository, the root of all output and the folder of this run
#   SCALE, SEED, ARCH, PRECISION
#   KWARGS             key=value arguments of the model's constructor, one per line
#   MICRO_BATCH, ACCUMULATE     batch size of a process, and batches per update
#   DATA_ROOT, CIFAR10          the user's folder of data, and the form of CIFAR-10, or digits (see records/request.py)
#   GPUS, NODES, NODE_RANK, MASTER_ADDR, MASTER_PORT
source "$(dirname "${BASH_SOURCE[0]}")/../shell.sh"

stage() { echo "# $1"; }

# say COMMAND...: print one command of the row.
say() {
    quoted "$@"
    echo
}

# say_into FILE COMMAND...: print a command with its standard output redirected to FILE.
say_into() { printf '%s > %q\n' "$(quoted "${@:2}")" "$1"; }

# prepare SCRIPT [NAME=VALUE...]: print the stage that prepares a data set; SCRIPT is relative to recipes/data, or to recipes/ if
# it has a slash.
prepare() {
    local script=$1
    if [[ $script != */* ]]; then script=data/$script; fi
    stage preparation
    say env DRY_RUN=0 OUT="$OUT" ${DATA_ROOT:+"DATA_ROOT=$DATA_ROOT"} "${@:2}" "$ROOT/recipes/$script.sh"
}

# launch COMMAND...: set LAUNCH to the command that starts a trainer, with torchrun if training is distributed.
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

# train_fairseq [BIN] FLAGS...: print the training command, at the row's precision.
train_fairseq() {
    local LAUNCH numbers=() bin=()
    if [ "$PRECISION" != fp32 ]; then numbers=("--$PRECISION"); fi
    if [[ $1 != -* ]]; then bin=("$1") && shift; fi
    launch fairseq-train
    say "${LAUNCH[@]}" "${bin[@]}" --user-dir "$ROOT/fairseq_plugin" --arch "$ARCH" \
        --save-dir "$RUN/checkpoints" --seed "$SEED" --required-batch-size-multiple 1 --update-epoch-batch-itr True \
        "${numbers[@]}" "$@"
}

# batches: set BATCHES to the flags of fairseq-train that give the table's batch size.
batches() {
    local unit=--batch-size
    if [ -n "${TOKENS:-}" ]; then unit=--max-tokens; fi
    BATCHES=($unit "$MICRO_BATCH" --update-freq "$ACCUMULATE")
}

# lines VARIABLE ARRAY: split a variable into an array of its lines; an unset variable gives an empty array.
lines() {
    local -n into=$2
    into=()
    if [ -n "${!1:-}" ]; then mapfile -t into <<<"${!1}"; fi
}
