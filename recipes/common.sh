# Shared by every recipe; source it. Settings, all from the environment:
#   SCALE    size and budget, each recipe says which (default: the recipe's own)
#   SEED     random seed of the run (default 1)
#   OUT      where everything is written (default: out/ beside recipes/)
#   DRY_RUN  1 prints the commands instead of running them
#   THREADS  processor threads of the training (default: all cores)
# and where training is distributed (one process a GPU; start the same command on every node):
#   GPUS     processes on each node (default 1)
#   NODES    nodes (default 1), NODE_RANK this one's number from 0, MASTER_ADDR and MASTER_PORT where node 0 listens
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
OUT=${OUT:-$ROOT/out}
SEED=${SEED:-1}
DRY_RUN=${DRY_RUN:-0}
GPUS=${GPUS:-1} NODES=${NODES:-1} NODE_RANK=${NODE_RANK:-0}
MASTER_ADDR=${MASTER_ADDR:-localhost} MASTER_PORT=${MASTER_PORT:-29500}
ROWS=
export OMP_NUM_THREADS=${THREADS:-${OMP_NUM_THREADS:-$(nproc 2>/dev/null || echo 2)}}
# The host calls interfaces that newer libraries call outdated, in a page of warnings that no reader of these logs can mend.
export PYTHONWARNINGS=${PYTHONWARNINGS-ignore::FutureWarning,ignore::UserWarning}
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}

log() { printf '== %s\n' "$*" >&2; }

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# The command as one line that a shell reads back as it was.
quoted() { printf '%q ' "$@" | sed 's/ $//'; }

# Run a command, or print it when DRY_RUN=1.
run() {
    if [ "$DRY_RUN" = 1 ]; then
        quoted "$@"
        echo
    else
        "$@"
    fi
}

# Carry out rows of a table. The script sets TABLE, defines a function row_NAME for each row and ends with `table "$@"`:
#   SCRIPT ROW [flags]   one row, ROW is its name; flags go on to the host's trainer
#   SCRIPT all [flags]   every row, in the table's order
#   SCRIPT list          what the rows are, for recipes/README.md, see `listed`
# SCALE is smoke unless it is set. A row finds PAPER and NAME (of the script's folder and of the script) and CALL, the
# command that was typed. Where rows are a product of settings, the script sets ROWS to their names and redefines run_row.
table() {
    local wanted=${1:-} name
    PAPER=$(basename "$(cd "$(dirname "$0")" && pwd)") NAME=$(basename "$0" .sh) SCALE=${SCALE:-smoke}
    CALL="SCALE=$SCALE SEED=$SEED recipes/$PAPER/$NAME.sh $*"
    ROWS=${ROWS:-$(sed -n 's/^row_\([A-Za-z0-9_]*\)() .*/\1/p' "$0" | tr '\n' ' ')}
    [ -n "$wanted" ] || fail "usage: $0 ROW|all|list [flags], where ROW is one of: $ROWS"
    shift
    case $wanted in
    list) LISTING=1 && for name in $ROWS; do ROW=$name && run_row; done ;;
    all) for name in $ROWS; do "$0" "$name" "$@"; done ;;
    *)
        [[ " $ROWS " == *" $wanted "* ]] || fail "ROW=$wanted: must be all, list or one of: $ROWS"
        ROW=$wanted && run_row "$@"
        ;;
    esac
}

run_row() { "row_$ROW" "$@"; }

# listed ARCH PARAMETERS VALUE [flags]: in `SCRIPT list`, print a line of table, row, architecture, the paper's parameters,
# the paper's result and the row's flags, separated by tabs, and succeed; else fail, so that the row is carried out. What
# is not known of the paper is "-".
listed() {
    [ "${LISTING:-0}" = 1 ] || return 1
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$TABLE" "$ROW" "$1" "$2" "$3" "$([ $# -eq 3 ] || quoted "${@:4}")"
}

# recorded ARCH VALUE [options of tools/collect.py]: where the run of a row lies (RUN), and how `once` records it (RECORD).
recorded() {
    RUN=$OUT/$PAPER/$NAME/$SCALE/$ROW/s$SEED
    if [ "$SCALE" = smoke ]; then RESULTS=${RESULTS:-$OUT/$PAPER/results.csv}; fi
    RECORD=(--results "${RESULTS:-$ROOT/recipes/$PAPER/results.csv}" --table "$TABLE" --row "$ROW" --arch "$1"
        --scale "$SCALE" --seed "$SEED" --command "$CALL" "${@:3}")
    if [ "$SCALE" = paper ] && [ "$2" != - ]; then RECORD+=(--paper-value "$2"); fi
}

# A figure is drawn from runs of tables' rows.
#   trained SCRIPT ROW...   carry these rows out at this scale, unless they are finished; SCRIPT as in ringformer/table1
#   labelled SCRIPT FILE ROW...   sets RUNS to ROW=FILE for each, FILE in the folder of its run
# LABEL is the scale as the runs are recorded under it, where that is not SCALE.
trained() {
    local row
    for row in "${@:2}"; do "$ROOT/recipes/$1.sh" "$row"; done
}

labelled() {
    local row folder
    RUNS=()
    for row in "${@:3}"; do
        folder=$("$ROOT/recipes/$1.sh" folder "$row" 2>/dev/null) || folder=$OUT/$1/${LABEL:-$SCALE}/$row/s$SEED
        RUNS+=("$row=$folder/$2")
    done
}

# The start of a trainer's command, LAUNCH: the command itself, or torchrun where training is distributed.
TORCHRUN=(torchrun --nnodes "$NODES" --nproc_per_node "$GPUS" --node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR"
    --master_port "$MASTER_PORT")

launch_fairseq() {
    LAUNCH=(fairseq-train)
    if [ $((GPUS * NODES)) -gt 1 ]; then
        LAUNCH=("${TORCHRUN[@]}" -m fairseq_cli.train --distributed-world-size $((GPUS * NODES)))
    fi
}

launch_train_image() {
    LAUNCH=(python "$ROOT/recipes/train_image.py")
    if [ $((GPUS * NODES)) -gt 1 ]; then LAUNCH=("${TORCHRUN[@]}" "$ROOT/recipes/train_image.py"); fi
}

# Run fairseq-train. Its whole log is appended to a file; the terminal gets the lines that tell how training goes, and the
# progress bar, which the host draws on the standard error where that is a terminal. Batches are loaded in the trainer's
# own process and thread: the host leaves the loading process of every epoch alive, each a copy of the trainer that grows
# with it, and an interpreter that ends while the loading thread is at work can abort.
run_training() {
    local file=$1 LAUNCH
    shift
    launch_fairseq
    if [ "$DRY_RUN" = 1 ]; then
        run "${LAUNCH[@]}" --num-workers 0 --data-buffer-size 0 "$@"
    else
        "${LAUNCH[@]}" --num-workers 0 --data-buffer-size 0 "$@" | tee -a "$file" |
            sed -u -n -E '/ \| (train_inner|train|valid) \||num\. shared|done training/s/^[-0-9: ]+\| INFO \| //p'
    fi
}

# Run train_image.py, which goes on where an interrupted run stopped. Its log is shown, and appended to a file.
run_image_training() {
    local file=$1 LAUNCH
    shift
    launch_train_image
    if [ "$DRY_RUN" = 1 ]; then
        run "${LAUNCH[@]}" "$@" --resume
    else
        "${LAUNCH[@]}" "$@" --resume 2>&1 | tee -a "$file"
    fi
}

# As run, with the standard output into a file that exists only once the command has succeeded.
run_into() {
    local file=$1
    shift
    if [ "$DRY_RUN" = 1 ]; then
        printf '%s > %q\n' "$(quoted "$@")" "$file"
    else
        "$@" >"$file.part"
        mv "$file.part" "$file"
    fi
}

# As run, with all output appended to a file; the terminal gets fairseq's lines about how training goes, not its others.
run_logged() {
    local file=$1
    shift
    if [ "$DRY_RUN" = 1 ]; then
        run "$@"
    else
        "$@" 2>&1 | tee -a "$file" |
            sed -u -E '/\| INFO \|/{/\| (train_inner|train|valid) \||num\. shared|done training/!d}'
    fi
}

# Run a function once: a marker in the folder says that it has finished.
stage() {
    local folder=$1 name=$2
    if [ "$DRY_RUN" != 1 ] && [ -e "$folder/.$name.done" ]; then
        log "$name: done before"
        return
    fi
    log "$name"
    "$name"
    if [ "$DRY_RUN" != 1 ]; then touch "$folder/.$name.done"; fi
}

# stages FOLDER FUNCTION...: each of them, once.
stages() {
    local folder=$1 name
    if [ "$DRY_RUN" != 1 ]; then mkdir -p "$folder"; fi
    for name in "${@:2}"; do stage "$folder" "$name"; done
}

need() {
    [ "$DRY_RUN" = 1 ] || command -v "$1" >/dev/null ||
        fail "$1: not found; install the package with its extras (pip install '.[fairseq,demo]') and put its environment on PATH"
}

# Carry out stages, named by functions, in a run's folder, which keeps the commands (cmd.sh), the environment (env.json),
# the training's log (train.log) and the outcome (metrics.json). A finished run is skipped, an interrupted one goes on where
# it stopped. RECORD holds the options of tools/collect.py, which adds the run to a table of results, a failed one too.
# Nodes after the first take part in the first stage, the training, alone.
once() {
    local folder=$1 name
    shift
    if [ "$NODE_RANK" != 0 ]; then set -- "$1"; fi
    if [ "$DRY_RUN" != 1 ]; then mkdir -p "$folder"; fi
    if [ "$DRY_RUN" = 1 ] || [ "$NODE_RANK" != 0 ]; then
        for name in "$@"; do "$name"; done
        return
    fi
    if [ -e "$folder/metrics.json" ]; then
        log "$folder: finished before (remove the folder to run it again)"
        return
    fi
    (DRY_RUN=1 && for name in "$@"; do "$name"; done) >"$folder/cmd.sh"
    python "$ROOT/recipes/records/environment.py" >"$folder/env.json"
    RUN_FOLDER=$folder
    trap 'exit 143' TERM # else the status would be that of whatever came before the command that was at work
    trap 'record_failure $?' EXIT
    for name in "$@"; do stage "$folder" "$name"; done
    trap - EXIT TERM
    python "$ROOT/recipes/records/collect.py" "$folder" "${RECORD[@]}"
    log "everything lies in $folder"
}

# A usage error (status 2) or an interruption is no result; any other failure is one.
record_failure() {
    case $1 in
    0 | 2 | 130 | 143) ;;
    *) python "$ROOT/recipes/records/collect.py" "$RUN_FOLDER" "${RECORD[@]}" --failed ;;
    esac
}
