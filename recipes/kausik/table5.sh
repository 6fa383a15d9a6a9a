#!/usr/bin/env bash
# Kausik, Table 5 of the text of July 2025: the size of the model that copies, counted; nothing is trained.
exec "$(dirname "$0")/../table" "$0" "$@"
