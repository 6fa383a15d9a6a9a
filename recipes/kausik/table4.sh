#!/usr/bin/env bash
# Kausik, Table 4 of the text of July 2025: greyscale CIFAR-10 as pixel sequences.
exec "$(dirname "$0")/../table" "$0" "$@"
