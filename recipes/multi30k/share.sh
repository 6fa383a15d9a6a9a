#!/usr/bin/env bash
# Multi30k, German to English: fairseq's own `transformer`, trained, becomes a loop over half its layers, and is trained on.
#
#   recipes/multi30k/share.sh ROW|all|list [flags]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
