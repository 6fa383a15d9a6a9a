# Functions for the scripts that prepare data, draw figures or run a demo; source it. Settings come from the environment:
#   OUT      root of all output (default: out/ beside recipes/)
#   DRY_RUN  1 prints the commands instead of running them
#   THREADS  CPU threads (default: all cores)
# A script called with -h or --help prints the comment at its head and does nothing.
source "$(dirname "${BASH_SOURCE[0]}")/shell.sh"

case ${1:-} in -h | --help)
    awk 'NR > 1 { if (!sub(/^# ?/, "")) exit; print }' "$0"
    exit
    ;;
esac

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
OUT=${OUT:-$ROOT/out}
DRY_RUN=${DRY_RUN:-0}
case $DRY_RUN in 0 | 1) ;; *) fail "DRY_RUN=$DRY_RUN: must be 0 or 1" ;; esac
[[ ${THREADS:-1} =~ ^[1-9][0-9]*$ ]] || fail "THREADS=$THREADS: must be a whole number of at least 1"
export OMP_NUM_THREADS=${THREADS:-${OMP_NUM_THREADS:-$(nproc 2>/dev/null || echo 2)}}
# fairseq uses deprecated interfaces of newer libraries; users of the recipes can do nothing about the warnings.
export PYTHONWARNINGS=${PYTHONWARNINGS-ignore::FutureWarning,ignore::UserWarning}
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}

log() { printf '== %s\n' "$*" >&2; }

# run COMMAND...: run the command, or print it if DRY_RUN=1.
run() {
    if [ "$DRY_RUN" = 1 ]; then
        quoted "$@"
        echo
    else
        "$@"
    fi
}

# run_into FILE COMMAND...: as run, with the standard output in FILE, which is created only if the command succeeds.
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

# run_logged FILE COMMAND...: as run, with all output appended to FILE; the terminal shows only fairseq's training progress.
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

# stage FOLDER FUNCTION: run the function unless a marker in FOLDER shows that it has finished before.
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

# stages FOLDER FUNCTION...: run each function once, in order.
stages() {
    local folder=$1 name
    if [ "$DRY_RUN" != 1 ]; then mkdir -p "$folder"; fi
    for name in "${@:2}"; do stage "$folder" "$name"; done
}

# need PROGRAM: fail if it is not on PATH.
need() {
    [ "$DRY_RUN" = 1 ] || command -v "$1" >/dev/null ||
        fail "$1: not found; install the package with its extras (pip install '.[fairseq,demo]') and put its environment on PATH"
}

# runs TABLE FILE ROW...: train the unfinished ones of these rows of a table, such as ringformer/table1, with the settings of
# the table's script (SCALE, SEED, DATA_ROOT, ...). Sets RUNS to one ROW=PATH each, PATH being FILE in the row's run folder.
runs() {
    local row
    RUNS=()
    for row in "${@:3}"; do
        "$ROOT/recipes/$1.sh" "$row"
        RUNS+=("$row=$("$ROOT/recipes/$1.sh" folder "$row")/$2")
    done
}
