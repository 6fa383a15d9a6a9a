#!/usr/bin/env bash
# Multi30k, English to German: the published result of Revisit-MMT's transformer (Wu et al. 2021), and looped models.
exec "$(dirname "$0")/../table" "$0" "$@"
