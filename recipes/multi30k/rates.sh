#!/usr/bin/env bash
# Multi30k: the peak rates of the main rows, tuned on the validation set.
exec "$(dirname "$0")/../table" "$0" "$@"
