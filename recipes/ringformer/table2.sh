#!/usr/bin/env bash
# RingFormer, Table 2: ImageNet-small, 100 classes of ImageNet. Needs ImageNet's archives, see recipes/data/imagenet.sh.
exec "$(dirname "$0")/../table" "$0" "$@"
