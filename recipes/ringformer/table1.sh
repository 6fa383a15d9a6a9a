#!/usr/bin/env bash
# RingFormer, Table 1: WMT14 German to English, and how many parameters are shared.
#
#   recipes/ringformer/table1.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
