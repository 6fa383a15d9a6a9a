#!/usr/bin/env bash
# SCAN, trained on outputs of at most 26 actions, tested on longer ones: one shared layer on each side against its controls.
exec "$(dirname "$0")/../table" "$0" "$@"
