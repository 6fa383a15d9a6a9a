#!/usr/bin/env bash
# Sequences of spoken digits, of the Free Spoken Digit Dataset: the same layers once and twice, and one layer.
#
#   recipes/takase/digits.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
