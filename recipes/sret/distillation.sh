#!/usr/bin/env bash
# SReT, section 5.3: soft labels alone against hard distillation.
exec "$(dirname "$0")/../table" "$0" "$@"
