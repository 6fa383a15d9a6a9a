#!/usr/bin/env bash
# Trains the model, then scores it on the test set. After an interruption, run it again to continue.
#
%{reasons}
set -euo pipefail
export PYTHONUTF8=1 # all texts are UTF-8, whatever the locale is
CDPATH= cd "$(dirname "$0")"
plugin=$(python -m fairseq_plugin)
run=checkpoints # of this model; another model needs another folder

fairseq-train data-bin --user-dir "$plugin" \
    %{model} --share-all-embeddings \
    --dropout %{dropout} --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
    --lr %{rate} --lr-scheduler cosine --warmup-updates %{warmup} --max-update %{updates} --max-tokens %{tokens} \
    --eval-bleu --eval-bleu-args '{"beam": 1, "max_len_a": 1.2, "max_len_b": 10}' --eval-bleu-remove-bpe sentencepiece \
    --eval-bleu-print-samples --best-checkpoint-metric bleu --maximize-best-checkpoint-metric \
    --validate-interval-updates %{interval} --save-interval-updates %{interval} --keep-interval-updates 1 \
    --validate-interval 1000000 --save-interval 1000000 --no-epoch-checkpoints --save-dir "$run" \
    --update-epoch-batch-itr True --distributed-world-size 1 --log-interval %{logged}

fairseq-generate data-bin --user-dir "$plugin" --path "$run/checkpoint_best.pt" \
    --beam 5 --max-len-a 1.2 --max-len-b 10 --remove-bpe sentencepiece --scoring sacrebleu >test.log
tail -n 1 test.log
