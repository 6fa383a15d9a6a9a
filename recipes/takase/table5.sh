#!/usr/bin/env bash
# Takase & Kiyono, Table 5: language models on WikiText-103.
exec "$(dirname "$0")/../table" "$0" "$@"
