#!/usr/bin/env bash
# Kausik, Table 5 of the text of July 2025: the size of the model that copies, counted; nothing is trained.
#
#   recipes/kausik/table5.sh ROW|all|list [flags of the model]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
