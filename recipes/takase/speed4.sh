#!/usr/bin/env bash
# Takase & Kiyono, speeds of Table 4.
exec "$(dirname "$0")/../table" "$0" "$@"
