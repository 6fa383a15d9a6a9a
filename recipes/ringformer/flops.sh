#!/usr/bin/env bash
# RingFormer, section 4.2: FLOPs of the vision models of Table 3, counted; nothing is trained (SCALE=paper).
#
#   recipes/ringformer/flops.sh ROW|all|list
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
