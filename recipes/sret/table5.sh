#!/usr/bin/env bash
# SReT, Table 5: ImageNet-1K, from labels, from a teacher, and trained on at 384 and 512 pixels.
#
#   recipes/sret/table5.sh ROW|all|list [flags of train_image.py]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
