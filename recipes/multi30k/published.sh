#!/usr/bin/env bash
# A published number: the transformer of Revisit-MMT (Wu et al. 2021) on Multi30k, English to German, and loops beside it.
exec "$(dirname "$0")/../table" "$0" "$@"
