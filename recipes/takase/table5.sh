#!/usr/bin/env bash
# Takase & Kiyono, Table 5: language models on WikiText-103.
#
#   recipes/takase/table5.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
