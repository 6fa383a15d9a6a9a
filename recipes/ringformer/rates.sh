#!/usr/bin/env bash
# RingFormer: the peak rate of Table 4's rows at scale small, tuned on the validation set.
exec "$(dirname "$0")/../table" "$0" "$@"
