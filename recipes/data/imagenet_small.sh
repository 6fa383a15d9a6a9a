#!/usr/bin/env bash
# Prepares ImageNet-small, RingFormer's subset of 100 classes of ImageNet with 1,000 training and 50 validation images each.
#   recipes/data/imagenet_small.sh
# The list of classes and images is published with the authors' code (imagenet-small.json, pinned to the commit below).
# DATA_ROOT  folder with imagenet_small/imagenet-small.json; without it the list is downloaded (3.8 MB)
# Prepares ImageNet itself first, with imagenet.sh, which also reads DATA_ROOT and IMAGENET.
# Writes $OUT/data/imagenet_small/{train,val}/CLASS/*.JPEG, links to the images
source "$(dirname "$0")/tools.sh"

COMMIT=0ac6969a94f0579a8dce7ae9d5c1a62ecea2feed
URL=https://raw.githubusercontent.com/eldor-fozilov/ringformer/$COMMIT/src_vision/imagenet-small.json
SET=$OUT/data/imagenet_small

selection() {
    obtain imagenet_small/imagenet-small.json "$URL" "$SET/imagenet-small.json"
    run rm -rf "$SET/train" "$SET/val"
    run python "$STEPS/imagenet_small.py" "$SET/imagenet-small.json" "$OUT/data/imagenet" "$SET"
    images "$SET/train" 100000
    images "$SET/val" 5000
}

OUT=$OUT DRY_RUN=$DRY_RUN "$STEPS/imagenet.sh"
stages "$SET" selection
