#!/usr/bin/env bash
# Takase & Kiyono, the speeds of Table 1: tokens a second in training, beside Universal.
exec "$(dirname "$0")/../table" "$0" "$@"
