#!/usr/bin/env bash
# RingFormer, Table 4: what of the level signals matters, with models 128 wide.
#
#   recipes/ringformer/table4.sh ROW|all|list [flags of fairseq-train]
#
# SCALE, PRECISION, RESULTS as in recipes/lib/translation.sh; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in
# recipes/common.sh
#
# Scale paper has the settings of Table 1, see recipes/ringformer/lib/translation.sh. Two rows do not follow from their
# description: without FFN signals a model has 0.540M parameters (the paper 0.57M), with signals inside the FFN 0.602M
# (0.54M).
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/translation.sh"
source "$(dirname "$0")/lib/translation.sh"

TABLE="RingFormer 4"
SMALL_WIDTH=128

row_ringformer() { translation ringformer_tiny 0.56M - "$@"; }
row_static() { translation ringformer_tiny 0.46M - --level-signal static "$@"; }
row_no_attention_signal() { translation ringformer_tiny 0.49M - --attention-signal none "$@"; }
row_no_ffn_signal() { translation ringformer_tiny 0.57M - --ffn-signal none "$@"; }
row_rank_32() { translation ringformer_tiny 0.51M - --signal-rank-divisor 32 "$@"; }
row_rank_8() { translation ringformer_tiny 0.66M - --signal-rank-divisor 8 "$@"; }
row_full_rank() { translation ringformer_tiny 1.25M - --level-signal full "$@"; }
row_attention_signal_before() { translation ringformer_tiny 0.56M - --attention-signal before "$@"; }
row_ffn_signal_inside() { translation ringformer_tiny 0.54M - --ffn-signal inside "$@"; }

table "$@"
