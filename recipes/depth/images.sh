#!/usr/bin/env bash
# Elastic depth on CIFAR-10: one checkpoint trained at all depths, compared with one checkpoint per depth.
exec "$(dirname "$0")/../table" "$0" "$@"
