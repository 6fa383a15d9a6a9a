#!/usr/bin/env bash
# Elastic depth on Multi30k, German to English: one checkpoint trained at all depths, compared with one per depth.
exec "$(dirname "$0")/../table" "$0" "$@"
