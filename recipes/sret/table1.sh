#!/usr/bin/env bash
# SReT, Table 1: naive recursion, DeiT-Tiny with each of its blocks run one to four times in succession.
#
#   recipes/sret/table1.sh ROW|all|list [flags of train_image.py]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
