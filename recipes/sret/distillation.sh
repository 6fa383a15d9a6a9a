#!/usr/bin/env bash
# SReT, section 5.3: soft labels only against hard distillation.
exec "$(dirname "$0")/../table" "$0" "$@"
