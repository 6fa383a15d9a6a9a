#!/usr/bin/env bash
# What one GPU can train and time in half an hour, the most valuable first; `make gpu` ends with it. The next call skips what
# has finished and continues with the rest, which is printed at the end. The trainings of a table run side by side, speeds are
# measured alone. Each row is recorded in results.csv as soon as it finishes; what the benchmarks print is in $OUT/gpu.
#   SCALE    paper (default), or smoke: the first row of each table and one benchmark, also without a GPU
#   BUDGET   seconds (default 1800), after which what still runs is stopped
#   DRY_RUN  1 prints the commands that are left
# OUT, RESULTS, SEED, THREADS and DATA_ROOT are those of the tables: recipes/kausik/table2.sh --help. The exit status is the
# number of commands that failed.
source "$(dirname "$0")/common.sh"

SCALE=${SCALE:-paper} BUDGET=${BUDGET:-1800}
LOGS=$OUT/gpu IMAGES=256 LEFT=() FAILED=0
declare -A RUNNING=() # commands by their process
export SCALE OUT

case $SCALE in paper | smoke) ;; *) fail "SCALE=$SCALE: must be paper or smoke" ;; esac
[[ $BUDGET =~ ^[1-9][0-9]*$ ]] || fail "BUDGET=$BUDGET: must be a whole number of at least 1"
[ $# = 0 ] || fail "$1: takes no arguments; settings come first, such as SCALE=smoke $0"
one_seed

# begin COMMAND...: run it in the background for what is left of BUDGET.
begin() {
    local command left=$((BUDGET - SECONDS)) # once: SECONDS goes on, and "timeout 0" would be no limit
    command=$(quoted "$@")
    command=${command#"$ROOT/"}
    if [ "$DRY_RUN" = 1 ]; then
        echo "SCALE=$SCALE $command"
    elif [ "$left" -gt 0 ]; then
        log "$command"
        timeout --foreground "$left" "$@" >"$(log_of "$command").part" 2>&1 &
        RUNNING[$!]=$command
    else
        LEFT+=("$command")
    fi
}

# finish: wait for all that has begun, and tell how it ended.
finish() {
    local process command file status
    for process in "${!RUNNING[@]}"; do
        command=${RUNNING[$process]} status=0
        file=$(log_of "$command")
        wait "$process" || status=$?
        if [ $status = 0 ]; then
            mv "$file.part" "$file"
            log "$command: finished"
            continue
        fi
        LEFT+=("$command")
        if [ $status = 124 ]; then
            log "$command: stopped"
        else
            FAILED=$((FAILED + 1))
            log "$command: failed with status $status; the end of $file.part:"
            tail -n 3 "$file.part" >&2
        fi
    done
    RUNNING=()
}

# log_of COMMAND: the file of its output, once it has finished.
log_of() { printf '%s' "$LOGS/${1//[ \/]/-}.log"; }

# unfinished TABLE ROWS: those of the rows that are not finished; at scale smoke only the first is asked for.
unfinished() {
    local row rows=$2 first=${2%% *} folder
    if [ "$SCALE" = smoke ]; then rows=$first; fi
    folder=$("$ROOT/recipes/$1.sh" folder "$first") || exit # runs of the table/ROW/sSEED
    for row in $rows; do
        if [ ! -e "${folder%/*/*}/$row/${folder##*/}/metrics.json" ]; then echo "$row"; fi
    done
}

# trainings TABLE ROWS: side by side.
trainings() {
    local row rows
    rows=$(unfinished "$1" "$2")
    for row in $rows; do begin "$ROOT/recipes/$1.sh" "$row"; done
    finish
}

# speeds TABLE ROWS [flags]: one row after the other.
speeds() {
    local row rows
    rows=$(unfinished "$1" "$2")
    for row in $rows; do
        begin "$ROOT/recipes/$1.sh" "$row" "${@:3}"
        finish
    done
}

# benchmark NAME [flags]: once.
benchmark() {
    local command=(python -m "benchmarks.$1" "${@:2}")
    if [ ! -e "$(log_of "$(quoted "${command[@]}")")" ]; then
        begin "${command[@]}"
        finish
    fi
}

if [ "$DRY_RUN" = 0 ]; then
    [ "$SCALE" = smoke ] || python -c "import sys, torch; sys.exit(not torch.cuda.is_available())" ||
        fail "SCALE=paper: needs a GPU; SCALE=smoke runs without one"
    mkdir -p "$LOGS"
    trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT
fi

trainings kausik/table2 "recurrent regular_1 regular_6 recurrent_positions"
speeds takase/speed "vanilla sequence cycle cycle_rev vanilla_18 sequence_18 cycle_18 cycle_rev_18
    universal_12 universal_small vanilla_big"
speeds takase/speed4 "vanilla sequence cycle cycle_rev"
if [ "$SCALE" = smoke ]; then
    IMAGES=1
    benchmark vision --part throughput --batch 1 --rounds 1 --threads 1
else
    # At these sizes a GPU waits for Python.
    benchmark scan
    benchmark language
    benchmark translation --arch ringformer_base --arch universal --arch one_wide_ffn_base --arch vanilla_base --arch cycle
    benchmark vision --part forward --part training --part throughput --part memory
    # At these, less so.
    benchmark translation --dtype bfloat16 --tokens 4000
    benchmark vision --dtype bfloat16 --batch 128 --part forward --part training --part throughput
fi
# All rows that have a speed, as those of a processor would stand in the same columns.
speeds sret/table4 "deit ext swin s deit_recursion t t_global tl tl_global s_global" --throughput "$IMAGES"
trainings multi30k/published "transformer universal" # the other rows have been trained on CPUs

if [ ${#LEFT[@]} -gt 0 ]; then
    echo "left:"
    printf "SCALE=$SCALE %s\n" "${LEFT[@]}"
fi
exit "$FAILED"
