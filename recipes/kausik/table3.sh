#!/usr/bin/env bash
# Kausik, Table 3 of the text of July 2025: June's Table 2 with a different batch size and learning rate.
exec "$(dirname "$0")/../table" "$0" "$@"
