#!/usr/bin/env bash
# Multi30k, German to English: architectures compared at the same training budget.
exec "$(dirname "$0")/../table" "$0" "$@"
