#!/usr/bin/env bash
# Intra-Layer Recurrence, Table 1, small models: perplexity of reuse maps with four position encodings.
exec "$(dirname "$0")/../table" "$0" "$@"
