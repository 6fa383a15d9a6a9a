#!/usr/bin/env bash
# Takase & Kiyono, Table 1: WMT16 English to German.
exec "$(dirname "$0")/../table" "$0" "$@"
