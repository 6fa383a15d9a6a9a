#!/usr/bin/env bash
# RingFormer, Table 1: WMT14 German to English, and how many parameters are shared.
#
#   recipes/ringformer/table1.sh ROW|all|list [flags of fairseq-train]
#
# SCALE, PRECISION, RESULTS as in recipes/lib/translation.sh; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in
# recipes/common.sh
#
# The settings of scale paper, and where text, appendix and code differ, are in recipes/ringformer/lib/translation.sh.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/translation.sh"
source "$(dirname "$0")/lib/translation.sh"

TABLE="RingFormer 1"

large() {
    WIDE=2 PAPER_FLAGS+=(--lr 2e-4)
    translation "$@"
}

row_vanilla() { translation vanilla_base 44.05M - "$@"; }
row_one_wide_ffn() { translation one_wide_ffn_base 20.98M - "$@"; }
row_universal() { translation universal 7.34M - "$@"; }
row_ringformer() { translation ringformer_base 8.94M - "$@"; }
row_vanilla_large() { large vanilla_large 176.18M - "$@"; }
row_one_wide_ffn_large() { large one_wide_ffn_large 83.91M - "$@"; }
row_universal_large() { large universal_large 29.37M - "$@"; }
row_ringformer_large() { large ringformer_large 35.71M - "$@"; }
# Not in the paper: the control that sharing has to beat, half the blocks and half the passes.
row_vanilla_half() { translation vanilla_base - - --encoder-layers 3 --decoder-layers 3 "$@"; }

table "$@"
