#!/usr/bin/env bash
# Takase & Kiyono, the speeds of Table 1: tokens a second in training, beside Universal.
#
#   recipes/takase/speed.sh ROW|all|list [flags of the model]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
