#!/usr/bin/env bash
# Takase & Kiyono, the speeds of Table 4.
#
#   recipes/takase/speed4.sh ROW|all|list [flags of the model]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
