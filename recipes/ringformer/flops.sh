#!/usr/bin/env bash
# RingFormer, section 4.2: FLOPs of the vision models of Table 3, counted; nothing is trained (SCALE=paper).
exec "$(dirname "$0")/../table" "$0" "$@"
