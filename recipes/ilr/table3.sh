#!/usr/bin/env bash
# Intra-Layer Recurrence, Table 3: sizes of the models, counted; nothing is trained.
#
#   recipes/ilr/table3.sh ROW|all|list [flags of the model]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
