#!/usr/bin/env bash
# Elastic depth on Multi30k, German to English: one checkpoint trained at every depth beside one for each.
exec "$(dirname "$0")/../table" "$0" "$@"
