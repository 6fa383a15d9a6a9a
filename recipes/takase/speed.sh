#!/usr/bin/env bash
# Takase & Kiyono, the speed column of Table 1: training steps and search of its models in turn, as ratios of times to
# fairseq's own transformer. The paper has the reciprocal, of training steps, against its universal model.
#
#   recipes/takase/speed.sh [options of benchmarks/translation.py]
#
# DRY_RUN as in recipes/common.sh; on a CPU this takes about 10 minutes, --rounds 1 a fifth of it.
source "$(dirname "$0")/../common.sh"

cd "$ROOT"
run python -m benchmarks.translation --arch takase_vanilla --arch sequence --arch cycle --arch cycle_rev \
    --arch universal_wide --arch universal_small "$@"
