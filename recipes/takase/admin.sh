#!/usr/bin/env bash
# Takase & Kiyono: 18 + 18 post-norm passes with and without Admin. recipes/figures/curves.py plots the runs of scale small.
exec "$(dirname "$0")/../table" "$0" "$@"
