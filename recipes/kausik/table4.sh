#!/usr/bin/env bash
# Kausik, Table 4 of the text of July 2025: CIFAR-10 in grey, pixel by pixel.
exec "$(dirname "$0")/../table" "$0" "$@"
