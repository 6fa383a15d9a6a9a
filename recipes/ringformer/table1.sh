#!/usr/bin/env bash
# RingFormer, Table 1: WMT14 German to English, with different amounts of sharing.
exec "$(dirname "$0")/../table" "$0" "$@"
