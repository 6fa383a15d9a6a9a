#!/usr/bin/env bash
# Elastic depth on CIFAR-10: one checkpoint trained at every depth beside one for each.
exec "$(dirname "$0")/../table" "$0" "$@"
