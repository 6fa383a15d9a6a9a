#!/usr/bin/env bash
# Takase & Kiyono, speeds of Table 1: tokens per second in training, relative to Universal.
exec "$(dirname "$0")/../table" "$0" "$@"
