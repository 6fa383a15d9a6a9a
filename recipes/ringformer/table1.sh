#!/usr/bin/env bash
# RingFormer, Table 1: WMT14 German to English, and how many parameters are shared.
exec "$(dirname "$0")/../table" "$0" "$@"
