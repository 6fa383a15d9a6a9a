#!/usr/bin/env bash
# Intra-Layer Recurrence, Table 1, small models: perplexity of reuse maps with four encodings of positions.
#
#   recipes/ilr/table1.sh MAP-POSITION|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
