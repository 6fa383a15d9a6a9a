#!/usr/bin/env bash
# Takase & Kiyono, Table 2: the high-resource setting, on data that PREPARED names (see recipes/data/prepared.sh).
#
#   recipes/takase/table2.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
