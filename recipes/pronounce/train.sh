#!/usr/bin/env bash
# English words to phonemes, with the CMU Pronouncing Dictionary.
exec "$(dirname "$0")/../table" "$0" "$@"
