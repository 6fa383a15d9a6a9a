#!/usr/bin/env bash
# SReT, Table 5: ImageNet-1K, from labels, from a teacher, and trained on at 384 and 512 pixels.
exec "$(dirname "$0")/../table" "$0" "$@"
