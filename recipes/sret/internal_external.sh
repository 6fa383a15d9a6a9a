#!/usr/bin/env bash
# SReT, section 5.2 and Figure 4: internal loops (0 0 1 1 2 2) against external ones (0 1 2 0 1 2).
#
#   recipes/sret/internal_external.sh ROW|all|list [flags of train_image.py]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
