#!/usr/bin/env bash
# SReT, section 5.2 and Figure 4: internal loops (0 0 1 1 2 2) against external ones (0 1 2 0 1 2).
exec "$(dirname "$0")/../table" "$0" "$@"
