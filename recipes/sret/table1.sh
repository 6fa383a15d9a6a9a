#!/usr/bin/env bash
# SReT, Table 1: naive recursion, DeiT-Tiny with each block run one to four times in succession.
exec "$(dirname "$0")/../table" "$0" "$@"
