#!/usr/bin/env bash
# RingFormer, Table 3: ImageNet-1K.
exec "$(dirname "$0")/../table" "$0" "$@"
