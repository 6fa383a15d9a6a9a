#!/usr/bin/env bash
# RingFormer, Table 3: ImageNet-1K.
#
#   recipes/ringformer/table3.sh ROW|all|list [flags of train_image.py]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
