#!/usr/bin/env bash
# Takase & Kiyono, Admin: 18 + 18 post-norm passes with it and without. Runs of scale small are drawn by recipes/figures/curves.py.
exec "$(dirname "$0")/../table" "$0" "$@"
