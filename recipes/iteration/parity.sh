#!/usr/bin/env bash
# The parity of the cells so far: passes as steps, against the controls.
exec "$(dirname "$0")/../table" "$0" "$@"
