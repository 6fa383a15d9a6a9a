#!/usr/bin/env bash
# SReT, Table 5: ImageNet-1K, from labels, with a teacher, and fine-tuned at 384 and 512 pixels.
exec "$(dirname "$0")/../table" "$0" "$@"
