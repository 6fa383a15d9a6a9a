#!/usr/bin/env bash
# SReT, Table 2: slices and recursion against global attention, at equal operations.
#
#   recipes/sret/table2.sh ROW|all|list [flags of train_image.py]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
