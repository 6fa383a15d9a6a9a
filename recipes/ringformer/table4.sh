#!/usr/bin/env bash
# RingFormer, Table 4: what of the level signals matters, with models 128 wide.
exec "$(dirname "$0")/../table" "$0" "$@"
