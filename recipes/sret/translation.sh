#!/usr/bin/env bash
# SReT, section 5.6 and Figure 7: recursion in translation.
#
#   recipes/sret/translation.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
