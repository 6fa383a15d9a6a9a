#!/usr/bin/env bash
# Multi30k, German to English: fairseq's own `transformer`, trained, becomes a loop over half its layers, and is trained on.
exec "$(dirname "$0")/../table" "$0" "$@"
