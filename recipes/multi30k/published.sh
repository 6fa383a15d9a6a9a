#!/usr/bin/env bash
# A published number: the transformer of Revisit-MMT (Wu et al. 2021) on Multi30k, English to German, and loops beside it.
#
#   SCALE=paper recipes/multi30k/published.sh ROW|all|list [flags of fairseq-train]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
