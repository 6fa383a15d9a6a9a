#!/usr/bin/env bash
# Takase & Kiyono, Table 2: the high-resource setting, on data that PREPARED names (see recipes/data/prepared.sh).
exec "$(dirname "$0")/../table" "$0" "$@"
