#!/usr/bin/env bash
# Characters of Shakespeare, our own comparison: one layer looped six times, run once, six layers, and Kausik's recurrent layer.
exec "$(dirname "$0")/../table" "$0" "$@"
