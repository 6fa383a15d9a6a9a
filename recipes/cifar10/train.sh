#!/usr/bin/env bash
# CIFAR-10: one architecture beside another, at one size and one budget.
exec "$(dirname "$0")/../table" "$0" "$@"
