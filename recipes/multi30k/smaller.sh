#!/usr/bin/env bash
# Multi30k, German to English: a trained `transformer` of fairseq, and every second of its layers, trained further.
exec "$(dirname "$0")/../table" "$0" "$@"
