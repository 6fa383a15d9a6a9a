#!/usr/bin/env bash
# Prepares CIFAR-10 for train.sh.
# DATA_ROOT  folder with cifar10.tar, 5,000 of the training images and 1,000 of the test images as JPEG files in train/CLASS
#            and test/CLASS; without it, torchvision downloads the full data set
# Writes $OUT/cifar10/{5000,full}; finished stages are skipped.
source "$(dirname "$0")/../common.sh"

SUBSET=$OUT/cifar10/5000
FULL=$OUT/cifar10/full

subset() {
    local split files
    [ "$DRY_RUN" = 1 ] || [ -f "$DATA_ROOT/cifar10.tar" ] || fail "DATA_ROOT=$DATA_ROOT: holds no cifar10.tar"
    run tar -xf "$DATA_ROOT/cifar10.tar" -C "$SUBSET"
    if [ "$DRY_RUN" = 1 ]; then return; fi
    for split in train:5000 test:1000; do
        files=$(find "$SUBSET/${split%:*}" -name '*.jpg' | wc -l)
        [ "$files" -eq "${split#*:}" ] || fail "${split%:*}: $files images, but the subset has ${split#*:}"
        log "${split%:*}: $files images"
    done
}

full() {
    run python -c 'import sys, torchvision; torchvision.datasets.CIFAR10(sys.argv[1], download=True)' "$FULL" ||
        fail "CIFAR-10: not downloaded; without a network, put cifar-10-batches-py into $FULL, or set DATA_ROOT" \
            "(see the head of $0)"
}

FOLDER=$FULL STAGE=full
if [ -n "${DATA_ROOT:-}" ]; then FOLDER=$SUBSET STAGE=subset; fi
if [ "$DRY_RUN" != 1 ]; then mkdir -p "$FOLDER"; fi
stage "$FOLDER" "$STAGE"
