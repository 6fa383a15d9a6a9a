#!/usr/bin/env bash
# CIFAR-10: architectures compared at the same training budget.
exec "$(dirname "$0")/../table" "$0" "$@"
