#!/usr/bin/env bash
# RingFormer, Table 2: ImageNet-small, 100 classes of ImageNet. Run recipes/data/imagenet.sh first.
exec "$(dirname "$0")/../table" "$0" "$@"
