#!/usr/bin/env bash
# Intra-Layer Recurrence, Table 2: training FLOPs, counted; nothing is trained.
exec "$(dirname "$0")/../table" "$0" "$@"
