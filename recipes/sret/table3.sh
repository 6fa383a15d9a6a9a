#!/usr/bin/env bash
# SReT, Table 3: what recursion, projections (NLL), coefficients (LRC), stem, pooling and distillation give.
exec "$(dirname "$0")/../table" "$0" "$@"
