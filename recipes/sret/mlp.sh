#!/usr/bin/env bash
# SReT, section 5.5 and Figure 6 (1): recursion and coefficients in all-MLP models.
#
#   recipes/sret/mlp.sh ROW|all|list [flags of train_image.py]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
