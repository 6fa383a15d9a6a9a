#!/usr/bin/env bash
# CIFAR-10: small models beside published ones that learned from the same images.
exec "$(dirname "$0")/../table" "$0" "$@"
