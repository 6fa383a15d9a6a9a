#!/usr/bin/env bash
# SReT, section 5.5 and Figure 6 (1): recursion and coefficients in all-MLP models.
exec "$(dirname "$0")/../table" "$0" "$@"
