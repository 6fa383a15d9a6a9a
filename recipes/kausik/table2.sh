#!/usr/bin/env bash
# Kausik, Table 2 of the text of June 2025: regular and recurrent layers on Shakespeare, by characters.
exec "$(dirname "$0")/../table" "$0" "$@"
