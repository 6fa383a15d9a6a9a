#!/usr/bin/env bash
# Elastic depth on Multi30k, German to English: one checkpoint trained at every depth beside one for each.
#
#   recipes/depth/train.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
