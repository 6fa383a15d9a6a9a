#!/usr/bin/env bash
# CIFAR-10: the peak rates of the main rows, tuned on images held out of the training set.
exec "$(dirname "$0")/../table" "$0" "$@"
