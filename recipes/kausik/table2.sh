#!/usr/bin/env bash
# Kausik, Table 2 of the text of June 2025: regular and recurrent layers on the characters of Shakespeare.
#
#   recipes/kausik/table2.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
