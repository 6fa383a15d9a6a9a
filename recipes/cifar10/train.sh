#!/usr/bin/env bash
# CIFAR-10: one architecture beside another, at one size and one budget.
#
#   recipes/cifar10/train.sh ROW|all|list [options of train_image.py]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
