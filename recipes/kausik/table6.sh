#!/usr/bin/env bash
# Kausik, Table 6 of the text of July 2025: copying and selective copying.
exec "$(dirname "$0")/../table" "$0" "$@"
