#!/usr/bin/env bash
# RingFormer, Table 4: which parts of the level signals matter, in models of width 128.
exec "$(dirname "$0")/../table" "$0" "$@"
