#!/usr/bin/env bash
# Unpacks ImageNet 2012 into class folders, for RingFormer and SReT.
#   recipes/data/imagenet.sh
# The archives are given to registered users only: get them from https://image-net.org/download-images.php. torchvision
# checks their MD5 sums, unpacks them and sorts the images into classes.
# DATA_ROOT  folder with imagenet/{ILSVRC2012_img_train.tar,ILSVRC2012_img_val.tar,ILSVRC2012_devkit_t12.tar.gz}; without it
#            the three files must be in $OUT/data/imagenet
# IMAGENET   folder that already has train/CLASS and val/CLASS: $OUT/data/imagenet becomes a link to it, nothing is unpacked
# Needs torchvision and scipy. Writes $OUT/data/imagenet/{train,val}/CLASS/*.JPEG (1,281,167 and 50,000 images, 145 GB)
source "$(dirname "$0")/tools.sh"

SET=$OUT/data/imagenet
HOME_PAGE=https://image-net.org/download-images.php

archive() {
    if [ -n "${DATA_ROOT:-}" ]; then
        obtain "imagenet/$1" $HOME_PAGE "$SET/$1"
    else
        [ "$DRY_RUN" = 1 ] || [ -f "$SET/$1" ] ||
            fail "$SET/$1: not found; it is given to registered users only: get it from $HOME_PAGE and put it there"
    fi
}

unpacking() {
    local file check=()
    for file in ILSVRC2012_devkit_t12.tar.gz ILSVRC2012_img_val.tar ILSVRC2012_img_train.tar; do archive $file; done
    if [ "$VERIFY" != 1 ]; then check=(--as-it-is); fi
    run python "$STEPS/imagenet.py" "$SET" "${check[@]}"
    images "$SET/val" 50000
    images "$SET/train" 1281167
}

if [ -L "$SET" ] && [ -z "${IMAGENET:-}" ]; then
    log "$SET: linked before"
    exit
fi
if [ -n "${IMAGENET:-}" ]; then
    [ -d "$IMAGENET/train" ] && [ -d "$IMAGENET/val" ] || fail "IMAGENET=$IMAGENET: must hold the folders train and val"
    [ -L "$SET" ] || [ ! -e "$SET" ] || fail "IMAGENET=$IMAGENET: $SET already exists; remove it, or unset IMAGENET"
    run mkdir -p "$OUT/data"
    run ln -sfn "$(realpath "$IMAGENET")" "$SET"
    exit
fi
package scipy torchvision
stages "$SET" unpacking
