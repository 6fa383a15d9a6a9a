#!/usr/bin/env bash
# SReT, section 5.3 and Figure 5 (2, 3): the width of the projections.
exec "$(dirname "$0")/../table" "$0" "$@"
