#!/usr/bin/env bash
# Multi30k, German to English: one architecture beside another, at one budget.
#
#   recipes/multi30k/train.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
