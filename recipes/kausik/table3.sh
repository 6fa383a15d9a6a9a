#!/usr/bin/env bash
# Kausik, Table 3 of the text of July 2025: Table 2 of June with other batches and another rate.
exec "$(dirname "$0")/../table" "$0" "$@"
