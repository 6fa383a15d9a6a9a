#!/usr/bin/env bash
# Characters of Shakespeare: the peak rates of the rows of depth.sh.
exec "$(dirname "$0")/../table" "$0" "$@"
