#!/usr/bin/env bash
# Intra-Layer Recurrence, Table 2: floating-point operations of the training, counted; nothing is trained.
#
#   recipes/ilr/table2.sh ROW|all|list [flags of the model]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
