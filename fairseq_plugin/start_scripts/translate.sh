#!/usr/bin/env bash
# Translates raw text from standard input, a sentence per line: echo "..." | ./translate.sh
set -euo pipefail
export PYTHONUTF8=1 # all texts are UTF-8, whatever the locale is
CDPATH= cd "$(dirname "$0")"

fairseq-interactive data-bin --user-dir "$(python -m fairseq_plugin)" --path checkpoints/checkpoint_best.pt \
    %{sides} --beam 5 --max-len-a 1.2 --max-len-b 10 \
    --bpe sentencepiece --sentencepiece-model checkpoints/sentencepiece.bpe.model | awk -F '\t' '/^D-/ { print $3 }'
