#!/usr/bin/env bash
# Prepares CIFAR-10.
# DATA_ROOT  folder with cifar10_full.tgz, all images as JPEG files in train/CLASS and test/CLASS, or with cifar10.tar, 5,000
#            of the training images and 1,000 of the test images; without it, torchvision downloads the data set
# CIFAR10    jpeg (cifar10_full.tgz), 5000 (cifar10.tar) or full (the download); default: 5000 with DATA_ROOT, otherwise full
# SIZE       height and width to shrink the images to (default: 32 pixels, as they are)
# HELD_OUT   1 also splits the training images into 9 tenths to train on and 1 tenth to choose settings on
# Writes $OUT/cifar10/$CIFAR10, with SIZE $OUT/cifar10/$CIFAR10-$SIZE, with HELD_OUT $OUT/cifar10/$CIFAR10-held-out; finished
# stages are skipped.
source "$(dirname "$0")/../data/tools.sh"

# unpack ARCHIVE TRAIN TEST: unpack an archive of DATA_ROOT that has this many images.
unpack() {
    [ -n "${DATA_ROOT:-}" ] || fail "CIFAR10=$CIFAR10: needs DATA_ROOT, a folder that holds $1"
    [ "$DRY_RUN" = 1 ] || [ -f "$DATA_ROOT/$1" ] || fail "DATA_ROOT=$DATA_ROOT: holds no $1"
    run tar -xf "$DATA_ROOT/$1" -C "$FOLDER"
    images "$FOLDER/train" "$2"
    images "$FOLDER/test" "$3"
}

jpeg() { unpack cifar10_full.tgz 50000 10000; }

5000() { unpack cifar10.tar 5000 1000; }

full() {
    run python -c 'import sys, torchvision; torchvision.datasets.CIFAR10(sys.argv[1], download=True)' "$FOLDER" ||
        fail "CIFAR-10: not downloaded; without a network, put cifar-10-batches-py into $FOLDER, or set DATA_ROOT" \
            "(see the head of $0)"
}

CIFAR10=${CIFAR10:-$([ -n "${DATA_ROOT:-}" ] && echo 5000 || echo full)}
case $CIFAR10 in
jpeg | 5000 | full) FOLDER=$OUT/cifar10/$CIFAR10 ;;
*) fail "CIFAR10=$CIFAR10: must be jpeg, 5000 or full" ;;
esac
stages "$FOLDER" "$CIFAR10"
if [ -n "${SIZE:-}" ]; then
    shrunk() { run python "$ROOT/recipes/cifar10/shrink.py" "$FOLDER" "$FOLDER-$SIZE" --size "$SIZE"; }
    stages "$FOLDER-$SIZE" shrunk
fi
if [ "${HELD_OUT:-0}" = 1 ]; then
    held_out() { run python "$ROOT/recipes/cifar10/hold_out.py" "$FOLDER" "$FOLDER-held-out"; }
    stages "$FOLDER-held-out" held_out
fi
