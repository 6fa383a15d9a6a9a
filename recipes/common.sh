# Functions of all shell scripts of the recipes; source it. Settings come from the environment:
#   OUT      root of all output (default: out/ beside recipes/)
#   DRY_RUN  1 prints the commands instead of running them
#   THREADS  CPU threads (default: all cores)
# A script with -h or --help among its words prints the comment at its head and does nothing.
set -euo pipefail
unset CDPATH # with which cd may go elsewhere, and prints where

case " $* " in *" -h "* | *" --help "*)
    awk 'NR > 1 { if (!sub(/^# ?/, "")) exit; print }' "$0"
    exit
    ;;
esac

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || fail "bash $BASH_VERSION: must be 4.4 or later"

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
OUT=${OUT:-$ROOT/out}
FLAGS=("$@") # of the script that sources this file; less those it takes itself
DRY_RUN=${DRY_RUN:-0}
case $DRY_RUN in 0 | 1) ;; *) fail "DRY_RUN=$DRY_RUN: must be 0 or 1" ;; esac
[[ ${THREADS:-1} =~ ^[1-9][0-9]*$ ]] || fail "THREADS=$THREADS: must be a whole number of at least 1"
export OMP_NUM_THREADS=${THREADS:-${OMP_NUM_THREADS:-$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)}}
# fairseq uses deprecated interfaces of newer libraries; users of the recipes can do nothing about the warnings.
export PYTHONWARNINGS=${PYTHONWARNINGS-ignore::FutureWarning,ignore::UserWarning}
export PYTHONUTF8=1 # all texts are UTF-8, whatever the locale is
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}

log() { printf '== %s\n' "$*" >&2; }

# quoted COMMAND...: print the command in one line, quoted for the shell.
quoted() {
    local line
    printf -v line '%q ' "$@"
    printf '%s' "${line% }"
}

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
        "$@" 2>&1 | python "$ROOT/recipes/records/progress.py" "$file"
    fi
}

# stages FOLDER FUNCTION...: make the folder and run the functions in order, without those that a marker there shows to have
# finished before. The marker holds the script's FLAGS: a stage that finished with others is not the one asked for.
stages() {
    local folder=$1 name flags="${FLAGS[*]}"
    if [ "$DRY_RUN" != 1 ]; then mkdir -p "$folder"; fi
    for name in "${@:2}"; do
        if [ "$DRY_RUN" != 1 ] && [ -e "$folder/.$name.done" ]; then
            [ "$(<"$folder/.$name.done")" = "$flags" ] ||
                fail "flags '$flags': $folder holds a run with flags '$(<"$folder/.$name.done")'; use those, or remove the folder"
            log "$name: done before"
            continue
        fi
        log "$name"
        "$name"
        if [ "$DRY_RUN" != 1 ]; then echo "$flags" >"$folder/.$name.done"; fi
    done
}

# need PROGRAM: fail if it is not on PATH.
need() {
    local remedy="install it"
    if [[ $1 == fairseq-* ]]; then remedy="install the package with its extras (pip install '.[fairseq,demo]') and put its environment on PATH"; fi
    [ "$DRY_RUN" = 1 ] || command -v "$1" >/dev/null || fail "$1: not found; $remedy"
}

# runs PROGRAM TABLE FILE ROW...: train the unfinished ones of these rows of a table, such as ringformer/table1, with the settings
# of the table's script (SCALE, SEED, DATA_ROOT, ...). Sets SCALE to its default, smoke, and RUNS to one ROW=PATH each, PATH being
# FILE in the row's run folder. FLAGS that PROGRAM does not take, and several SEEDS, are rejected first.
runs() {
    local row
    check_flags "$1"
    one_seed
    RUNS=() SCALE=${SCALE:-smoke}
    for row in "${@:4}"; do
        "$ROOT/recipes/$2.sh" "$row"
        RUNS+=("$row=$("$ROOT/recipes/$2.sh" folder "$row")/$3")
    done
}

# one_seed: fail if SEEDS has several.
one_seed() {
    [ "$(wc -w <<<"${SEEDS:-}")" -le 1 ] || fail "SEEDS=$SEEDS: must be one seed here, such as SEED=2"
}

# check_flags PROGRAM: fail unless FLAGS are options of PROGRAM (of figures/, or installed): their names are in its help, and it
# accepts their values. --output, --stage and --y are rejected, too: a script gives them, to each picture its own.
check_flags() {
    local word help program=("$1")
    [ ${#FLAGS[@]} -gt 0 ] || return 0
    if [[ $1 = *.py ]]; then program=(python "$ROOT/recipes/figures/$1"); fi
    # argparse prints the help after the values before it have been accepted
    help=$("${program[@]}" "${FLAGS[@]}" --help | sed -E 's/--(output|stage|y)\b//g')
    for word in "${FLAGS[@]}"; do
        if [[ $word != -* && $word = "${FLAGS[0]}" ]] || [[ $word = --* && $help != *"${word%%=*}"* ]]; then
            fail "$word: must be an option of $1, not --output, --stage or --y; settings come first, such as SCALE=small $0"
        fi
    done
}
