#!/usr/bin/env bash
# War and Peace: the peak rates of reuse maps and of their controls.
exec "$(dirname "$0")/../table" "$0" "$@"
