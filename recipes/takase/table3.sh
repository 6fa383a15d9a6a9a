#!/usr/bin/env bash
# Takase & Kiyono, Table 3: other directions and languages, each row a pair and a model, as in de_en-cycle_rev.
#
#   recipes/takase/table3.sh PAIR-MODEL|all|list [flags of fairseq-train]
#
# PAIR  de_en, en_fr, fr_en; PAIRS="ro_en ..." has others
# MODEL vanilla, universal, sequence, cycle, cycle_rev, as in Table 1
# SCALE, PRECISION, RESULTS as in recipes/lib/translation.sh; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in
# recipes/common.sh
# PREPARED   at scale paper, the data of any pair but de_en, which is that of Table 1 backwards: see
#            recipes/data/prepared.sh
#
# Scale paper is that of Table 1, see recipes/takase/lib/translation.sh. At the other scales all pairs are the same exercise.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/translation.sh"
source "$(dirname "$0")/lib/translation.sh"

TABLE="Takase 3"
PAPER_FLAGS+=(--share-all-embeddings)
ROWS=$(for pair in ${PAIRS:-de_en en_fr fr_en}; do
    for model in vanilla universal sequence cycle cycle_rev; do printf '%s-%s ' "$pair" "$model"; done
done)

run_row() {
    local pair=${ROW%-*} model=${ROW#*-}
    PAPER_PAIR=${pair/_/ } PAPER_DATA=prepared PAPER_TESTS=(test:test)
    if [ "$pair" = de_en ]; then PAPER_DATA=wmt16_en_de PAPER_TESTS=(newstest2014:test4); fi
    case $model in
    vanilla) translation takase_vanilla - - "$@" ;;
    universal) WIDE=2 translation universal_wide - - "$@" ;;
    *) translation "$model" - - "${ADMIN[@]}" "$@" ;;
    esac
}

table "$@"
