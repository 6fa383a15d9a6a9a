#!/usr/bin/env bash
# Takase & Kiyono, Table 3: other language pairs; a row is a pair and a model, such as de_en-cycle_rev.
exec "$(dirname "$0")/../table" "$0" "$@"
