#!/usr/bin/env bash
# Intra-Layer Recurrence, Table 1, large models: the baseline, and the second layer run twice, with four position encodings.
exec "$(dirname "$0")/../table" "$0" "$@"
