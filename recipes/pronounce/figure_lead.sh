#!/usr/bin/env bash
# Pronunciation: by how much the loop's validation loss is below that of narrow layers of its size, over the course of training:
# after as many updates (narrow), after as much time (narrow_time), and over one wide layer after as much time (storage_time).
#   recipes/pronounce/figure_lead.sh [options of recipes/figures/lead.py]
# SEEDS  the seeds, which are paired (default "1 2 3")
source "$(dirname "$0")/../common.sh"

PAIRED=()
for SEED in ${SEEDS:-1 2 3}; do
    export SEED
    SEEDS='' runs lead.py pronounce/train train.log ringformer_small narrow narrow_time storage_time
    PAIRED+=("${RUNS[@]}")
done
run python "$ROOT/recipes/figures/lead.py" "${PAIRED[@]}" --output "$OUT/pronounce/lead-$SCALE.svg" "$@"
