#!/usr/bin/env bash
# Kausik, Table 4 of the text of July 2025: CIFAR-10 in grey, pixel by pixel.
#
#   recipes/kausik/table4.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
