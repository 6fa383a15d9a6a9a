#!/usr/bin/env bash
# SReT, Table 2: sliced attention with recursion against global attention, at equal operations.
exec "$(dirname "$0")/../table" "$0" "$@"
