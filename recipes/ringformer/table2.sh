#!/usr/bin/env bash
# RingFormer, Table 2: ImageNet-small, 100 classes of ImageNet. Run recipes/data/imagenet.sh first, of which it is a part.
#
#   recipes/ringformer/table2.sh ROW|all|list [flags of train_image.py]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
