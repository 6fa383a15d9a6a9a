#!/usr/bin/env bash
# Takase & Kiyono, Table 1: WMT English to German, three orders of 6 stored layers against models that share nothing or all.
#
#   recipes/takase/table1.sh ROW|all|list [flags of fairseq-train]
#
# SCALE, PRECISION, RESULTS as in recipes/lib/translation.sh; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in
# recipes/common.sh
#
# The settings of scale paper, and where paper and release differ, are in recipes/takase/lib/translation.sh. Admin's vectors
# are not in the paper's parameters: 5 x 512 a layer of encoder and decoder.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/translation.sh"
source "$(dirname "$0")/lib/translation.sh"

TABLE="Takase 1"
PAPER_DATA=wmt16_en_de
PAPER_PAIR="en de"
PAPER_TESTS=(newstest2010:test newstest2011:test1 newstest2012:test2 newstest2013:test3 newstest2014:test4
    newstest2015:test5 newstest2016:test6)
PAPER_FLAGS+=(--share-all-embeddings)
DEEP=(--encoder-layers 18 --decoder-layers 18 "${ADMIN[@]}")

wide() { WIDE=2 translation "$@"; }

row_vanilla() { translation takase_vanilla 61M - "$@"; }
row_universal() { wide universal_wide 63M - "$@"; }
row_sequence() { translation sequence 61M - "${ADMIN[@]}" "$@"; }
row_cycle() { translation cycle 61M - "${ADMIN[@]}" "$@"; }
row_cycle_rev() { translation cycle_rev 61M - "${ADMIN[@]}" "$@"; }
row_universal_small() { translation universal_small 24M - "$@"; }
row_universal_12() { wide universal_wide_deep 63M - "${ADMIN[@]}" "$@"; }
row_sequence_18() { translation sequence 61M - "${DEEP[@]}" "$@"; }
row_cycle_18() { translation cycle 61M - "${DEEP[@]}" "$@"; }
row_cycle_rev_18() { translation cycle_rev 61M - "${DEEP[@]}" "$@"; }
row_vanilla_18() { translation takase_vanilla_deep 149M - "${ADMIN[@]}" "$@"; }
row_vanilla_big() { wide takase_vanilla_big 210M - "$@"; }

table "$@"
