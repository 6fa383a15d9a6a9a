#!/usr/bin/env bash
# A cellular automaton: loops that begin late in training, at equal time.
exec "$(dirname "$0")/../table" "$0" "$@"
