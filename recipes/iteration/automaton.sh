#!/usr/bin/env bash
# A cellular automaton: a block whose passes are steps, run further than in training, against its controls.
exec "$(dirname "$0")/../table" "$0" "$@"
