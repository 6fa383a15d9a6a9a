#!/usr/bin/env bash
# SReT, Table 3: ablation of recursion, projections (NLL), coefficients (LRC), stem, pooling and distillation.
exec "$(dirname "$0")/../table" "$0" "$@"
