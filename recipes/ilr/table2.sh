#!/usr/bin/env bash
# Intra-Layer Recurrence, Table 2: floating-point operations of the training, counted; nothing is trained.
exec "$(dirname "$0")/../table" "$0" "$@"
