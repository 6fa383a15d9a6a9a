#!/usr/bin/env bash
# Elastic depth on CIFAR-10: one checkpoint trained at every depth beside one for each.
#
#   recipes/depth/images.sh ROW|all|list [flags of train_image.py]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
