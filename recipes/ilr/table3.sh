#!/usr/bin/env bash
# Intra-Layer Recurrence, Table 3: sizes of the models, counted; nothing is trained.
exec "$(dirname "$0")/../table" "$0" "$@"
