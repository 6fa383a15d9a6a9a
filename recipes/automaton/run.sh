#!/usr/bin/env bash
# Demo: a cellular automaton, learned by two models with the same stored weights. Passes of `looped` are steps, 1 to 6 in training;
# `once` runs its block once, reads the number of steps from the first token, and is trained on 1 to 12. Both are tested on more steps.
#
#   recipes/automaton/run.sh [flags of fairseq-train, for both models]
#
# SCALE  demo   about a minute of training, both models at once, each on one core (default)
#        smoke  4 updates; only shows that the recipe works
# SEED (default 1); OUT, DRY_RUN as in recipes/common.sh
# Expected at scale demo: nearly all rows of `looped` are wholly right, also after 48 steps and in rows of 48 cells, and after 10 steps
# none of `once`.
source "$(dirname "$0")/../common.sh"

SCALE=${SCALE:-demo} SEED=${SEED:-1}
case $SCALE in
smoke) LOOPED=4 ONCE=4 WARMUP=1 TEXTS=20 ;;
demo) LOOPED=250 ONCE=1500 WARMUP=50 TEXTS=500 ;;
*) fail "SCALE=$SCALE: must be demo or smoke" ;;
esac
RUNS=$OUT/automaton/$SCALE/s$SEED
export OMP_NUM_THREADS=1

# named NAME: begin each line with the name, unless it is a command of a dry run.
named() { if [ "$DRY_RUN" = 1 ]; then cat; else sed -u "s/^/$1: /"; fi; }

# learn NAME UPDATES FLAG...: train one model; its lines of progress begin with its name.
learn() {
    local run=$RUNS/$1
    if [ "$DRY_RUN" != 1 ]; then mkdir -p "$run"; fi
    run_logged "$run/train.log" fairseq-train --user-dir "$ROOT/fairseq_plugin" --task automaton --arch ilr_small \
        --decoder-layers 1 --decoder-embed-dim 64 --decoder-ffn-embed-dim 128 --post-norm --position relative "${@:3}" \
        --criterion answer_cross_entropy --report-accuracy --optimizer adam --adam-betas "(0.9, 0.98)" --lr 3e-3 \
        --lr-scheduler cosine --warmup-updates $WARMUP --clip-norm 1 --batch-size 64 --max-update "$2" --seed "$SEED" \
        --update-epoch-batch-itr True --required-batch-size-multiple 1 --disable-validation --no-epoch-checkpoints \
        --distributed-world-size 1 --save-dir "$run/checkpoints" --log-interval $((1 + $2 / 10)) "${FLAGS[@]}" | named "$1"
}

# Both at once; if one fails, the other is waited for.
training() {
    log "$LOOPED updates of looped, $ONCE of once, side by side"
    learn once "$ONCE" &
    local once=$! failed=0
    learn looped "$LOOPED" --pass-steps --dropout 0.1 --reuse-map 6 --depth-range 1-6 --pass-loss 1 || failed=1
    wait $once || failed=1
    return $failed
}

stages "$RUNS" training
run python "$ROOT/recipes/automaton/report.py" "$RUNS" --texts $TEXTS
