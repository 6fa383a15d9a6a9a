#!/usr/bin/env bash
# Sequences of spoken digits (Free Spoken Digit Dataset): layers run once, the same layers run twice, and a single layer.
exec "$(dirname "$0")/../table" "$0" "$@"
