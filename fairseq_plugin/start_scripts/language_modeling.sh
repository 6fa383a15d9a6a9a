#!/usr/bin/env bash
# Trains the model, then scores it on the test text. After an interruption, run it again to continue.
#
%{reasons}
set -euo pipefail
export PYTHONUTF8=1 # all texts are UTF-8, whatever the locale is
CDPATH= cd "$(dirname "$0")"
plugin=$(python -m fairseq_plugin)
run=checkpoints # of this model; another model needs another folder

fairseq-train data-bin --user-dir "$plugin" --task language_modeling \
    %{model} \
    --dropout %{dropout} --tokens-per-sample 256 --sample-break-mode none \
    --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
    --lr %{rate} --lr-scheduler cosine --warmup-updates %{warmup} --max-update %{updates} --max-tokens %{tokens} \
    --validate-interval-updates %{interval} --save-interval-updates %{interval} --keep-interval-updates 1 \
    --validate-interval 1000000 --save-interval 1000000 --no-epoch-checkpoints --save-dir "$run" \
    --update-epoch-batch-itr True --distributed-world-size 1 --log-interval %{logged}

fairseq-eval-lm data-bin --user-dir "$plugin" --path "$run/checkpoint_best.pt" --tokens-per-sample 256 >test.log
tail -n 1 test.log
