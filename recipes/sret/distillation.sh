#!/usr/bin/env bash
# SReT, section 5.3: soft labels alone against hard distillation.
#
#   recipes/sret/distillation.sh ROW|all|list [flags of train_image.py]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
