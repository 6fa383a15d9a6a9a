#!/usr/bin/env bash
# Takase & Kiyono, Table 3: other directions and languages, each row a pair and a model, as in de_en-cycle_rev.
#
#   recipes/takase/table3.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
