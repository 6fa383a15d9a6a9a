# Shared by every recipe; source it. Settings, all from the environment:
#   SCALE    size and budget, each recipe says which (default: the recipe's own)
#   SEED     random seed of the run (default 1)
#   OUT      where everything is written (default: out/ beside recipes/)
#   DRY_RUN  1 prints the commands instead of running them
#   THREADS  processor threads of the training (default: all cores)
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TOOLS=$ROOT/recipes/tools
OUT=${OUT:-$ROOT/out}
SEED=${SEED:-1}
DRY_RUN=${DRY_RUN:-0}
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

# Run fairseq-train. Its whole log is appended to a file; the terminal gets the lines that tell how training goes, and the
# progress bar, which the host draws on the standard error where that is a terminal. Batches are loaded in the trainer's
# own process and thread: the host leaves the loading process of every epoch alive, each a copy of the trainer that grows
# with it, and an interpreter that ends while the loading thread is at work can abort.
run_training() {
    local file=$1
    shift
    if [ "$DRY_RUN" = 1 ]; then
        run fairseq-train --num-workers 0 --data-buffer-size 0 "$@"
    else
        fairseq-train --num-workers 0 --data-buffer-size 0 "$@" | tee -a "$file" |
            sed -u -n -E '/ \| (train_inner|train|valid) \||num\. shared|done training/s/^[-0-9: ]+\| INFO \| //p'
    fi
}

# Run train_image.py, which goes on where an interrupted run stopped. Its log is shown, and appended to a file.
run_image_training() {
    local file=$1
    shift
    if [ "$DRY_RUN" = 1 ]; then
        run python "$ROOT/recipes/train_image.py" "$@" --resume
    else
        python "$ROOT/recipes/train_image.py" "$@" --resume 2>&1 | tee -a "$file"
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

need() {
    [ "$DRY_RUN" = 1 ] || command -v "$1" >/dev/null ||
        fail "$1: not found; install the package with its extras (pip install '.[fairseq,demo]') and put its environment on PATH"
}

# Carry out stages, named by functions, in a run's folder, which keeps the commands (cmd.sh), the environment (env.json),
# the training's log (train.log) and the outcome (metrics.json). A finished run is skipped, an interrupted one goes on where
# it stopped. RECORD holds the options of tools/collect.py, which adds the run to a table of results, a failed one too.
once() {
    local folder=$1 name
    shift
    if [ "$DRY_RUN" = 1 ]; then
        for name in "$@"; do "$name"; done
        return
    fi
    if [ -e "$folder/metrics.json" ]; then
        log "$folder: finished before (remove the folder to run it again)"
        return
    fi
    mkdir -p "$folder"
    (DRY_RUN=1 && for name in "$@"; do "$name"; done) >"$folder/cmd.sh"
    python "$TOOLS/environment.py" >"$folder/env.json"
    RUN_FOLDER=$folder
    trap 'exit 143' TERM # else the status would be that of whatever came before the command that was at work
    trap 'record_failure $?' EXIT
    for name in "$@"; do stage "$folder" "$name"; done
    trap - EXIT TERM
    python "$TOOLS/collect.py" "$folder" "${RECORD[@]}"
    log "everything lies in $folder"
}

# A usage error (status 2) or an interruption is no result; any other failure is one.
record_failure() {
    case $1 in
    0 | 2 | 130 | 143) ;;
    *) python "$TOOLS/collect.py" "$RUN_FOLDER" "${RECORD[@]}" --failed ;;
    esac
}
