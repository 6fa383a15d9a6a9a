#!/usr/bin/env bash
# Takase & Kiyono, Table 4: speech recognition on LibriSpeech.
#
#   recipes/takase/table4.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
