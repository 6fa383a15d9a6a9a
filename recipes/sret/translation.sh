#!/usr/bin/env bash
# SReT, section 5.6 and Figure 7: recursion in translation.
exec "$(dirname "$0")/../table" "$0" "$@"
