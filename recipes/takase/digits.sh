#!/usr/bin/env bash
# Sequences of spoken digits, of the Free Spoken Digit Dataset: the same layers once and twice, and one layer.
exec "$(dirname "$0")/../table" "$0" "$@"
