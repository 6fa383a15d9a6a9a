#!/usr/bin/env bash
# Takase & Kiyono, Table 3: other directions and languages, each row a pair and a model, as in de_en-cycle_rev.
exec "$(dirname "$0")/../table" "$0" "$@"
