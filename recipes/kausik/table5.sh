#!/usr/bin/env bash
# Kausik, Table 5 of the text of July 2025: size of the model for copying, counted; nothing is trained.
exec "$(dirname "$0")/../table" "$0" "$@"
