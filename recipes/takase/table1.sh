#!/usr/bin/env bash
# Takase & Kiyono, Table 1: WMT16 English to German.
#
#   recipes/takase/table1.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
