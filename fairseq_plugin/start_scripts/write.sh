#!/usr/bin/env bash
# Continues the beginnings of texts from standard input, one per line: echo "..." | ./write.sh
set -euo pipefail
export PYTHONUTF8=1 # all texts are UTF-8, whatever the locale is
CDPATH= cd "$(dirname "$0")"

fairseq-interactive data-bin --user-dir "$(python -m fairseq_plugin)" --task language_modeling \
    --path checkpoints/checkpoint_best.pt --sampling --sampling-topp 0.9 --beam 1 --max-len-a 1 --max-len-b 199 \
    --bpe sentencepiece --sentencepiece-model checkpoints/sentencepiece.bpe.model | awk -F '\t' '/^D-/ { print $3 }'
