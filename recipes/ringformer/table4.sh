#!/usr/bin/env bash
# RingFormer, Table 4: what of the level signals matters, with models 128 wide.
#
#   recipes/ringformer/table4.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
