#!/usr/bin/env bash
# Intra-Layer Recurrence, Table 3: model sizes, counted; nothing is trained.
exec "$(dirname "$0")/../table" "$0" "$@"
