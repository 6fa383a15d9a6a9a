#!/usr/bin/env bash
# Takase & Kiyono, Table 4: speech recognition on LibriSpeech.
exec "$(dirname "$0")/../table" "$0" "$@"
