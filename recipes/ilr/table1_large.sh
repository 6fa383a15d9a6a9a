#!/usr/bin/env bash
# Intra-Layer Recurrence, Table 1, large models: the baseline and the second layer twice, with four encodings of positions.
exec "$(dirname "$0")/../table" "$0" "$@"
