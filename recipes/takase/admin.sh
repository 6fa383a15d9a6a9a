#!/usr/bin/env bash
# Takase & Kiyono, Admin: 18 + 18 post-norm passes with it and without. Runs of scale small are drawn by recipes/figures/curves.py.
#
#   recipes/takase/admin.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
