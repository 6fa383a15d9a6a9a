#!/usr/bin/env bash
# Multi30k, German to English: a trained `transformer` of fairseq is converted to a loop over half its layers and trained further.
exec "$(dirname "$0")/../table" "$0" "$@"
