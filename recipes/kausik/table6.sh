#!/usr/bin/env bash
# Kausik, Table 6 of the text of July 2025: copying and selective copying.
#
#   recipes/kausik/table6.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
