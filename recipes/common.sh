# Shared by scripts that prepare data, draw figures or show a demo; source it. Settings, all from the environment:
#   OUT      where everything is written (default: out/ beside recipes/)
#   DRY_RUN  1 prints the commands instead of running them
#   THREADS  processor threads (default: all cores)
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
OUT=${OUT:-$ROOT/out}
DRY_RUN=${DRY_RUN:-0}
export OMP_NUM_THREADS=${THREADS:-${OMP_NUM_THREADS:-$(nproc 2>/dev/null || echo 2)}}
# fairseq calls interfaces that newer libraries call outdated, in a page of warnings that no reader of these logs can mend.
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

# runs TABLE FILE ROW...: trains these rows of a table, such as ringformer/table1, unless they are finished, with the settings of
# the table's script (SCALE, SEED, DATA_ROOT, ...). Sets RUNS to ROW=FILE for each, FILE in the folder of its run.
runs() {
    local row
    RUNS=()
    for row in "${@:3}"; do
        "$ROOT/recipes/$1.sh" "$row"
        RUNS+=("$row=$("$ROOT/recipes/$1.sh" folder "$row")/$2")
    done
}
