#!/usr/bin/env bash
# Takase & Kiyono, Table 2: the high-resource setting, English to German, with the dimensions of the big model.
#
#   recipes/takase/table2.sh ROW|all|list [flags of fairseq-train]
#
# SCALE, PRECISION, RESULTS as in recipes/lib/translation.sh; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in
# recipes/common.sh
# PREPARED   at scale paper, the data: see recipes/data/prepared.sh. The paper's is filtered and back-translated by models
#            that are not public.
#
# Scale paper is that of Table 1, see recipes/takase/lib/translation.sh. The parameters follow from 32,000 symbols a language,
# with one matrix for the decoder's input and output: 2 x 32,000 x 1,024 beside stacks of 176.4M. The universal model has the
# paper's parameters at twice the width, 2048/8192; its 32 heads and 6 passes are assumed.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/translation.sh"
source "$(dirname "$0")/lib/translation.sh"

TABLE="Takase 2"
PAPER_DATA=prepared
PAPER_PAIR="en de"
PAPER_TESTS=(test:test)
APART=(--share-decoder-input-output-embed)

row_vanilla() { translation takase_vanilla_big 242M - "${APART[@]}" "$@"; }
row_universal() { WIDE=2 translation universal_big 249M - "${APART[@]}" "$@"; }
row_sequence() { translation sequence_big 242M - "${APART[@]}" "${ADMIN[@]}" "$@"; }
row_cycle() { translation cycle_big 242M - "${APART[@]}" "${ADMIN[@]}" "$@"; }
row_cycle_rev() { translation cycle_rev_big 242M - "${APART[@]}" "${ADMIN[@]}" "$@"; }

table "$@"
