# What RingFormer's translation tables have in common; sourced by their scripts.
#
# Scale paper. The text says 830,000 updates, 40,000 of warm-up and batches of 512; the appendix 210,000, 17,000, peak rate
# 7e-4 (2e-4 for the large models) and sentences of at most 50 pieces; the code a cosine over 170,000 with 17,000 of
# warm-up, Adam's default betas, norms clipped at 1, no label smoothing, at most 100 epochs, stopped after 30 without a
# better validation BLEU. Here: the appendix where the two differ, with the code's optimiser and stopping rule. The code
# scores word pieces by NLTK; the score here is sacreBLEU on plain text. Both decode greedily, at most 50 pieces.
# 512 sentences an update are 8 GPUs of 64, or fewer with an UPDATE_FREQ.
PAPER_DATA=wmt14_de_en
PAPER_PAIR="de en"
PAPER_TESTS=(newstest2014:test)
PAPER_FLAGS=(--optimizer adam --adam-betas "(0.9, 0.999)" --lr 7e-4 --lr-scheduler cosine --warmup-updates 17000
    --max-update 210000 --max-epoch 100 --clip-norm 1.0 --dropout 0.1 --criterion cross_entropy --batch-size 64
    --update-freq "${UPDATE_FREQ:-1}" --max-source-positions 50 --max-target-positions 50
    --skip-invalid-size-inputs-valid-test --eval-bleu --eval-bleu-remove-bpe sentencepiece --eval-bleu-detok moses
    --best-checkpoint-metric bleu --maximize-best-checkpoint-metric --patience 30 --keep-last-epochs 1)
PAPER_AVERAGE=(best)
PAPER_SEARCH=(--beam 1 --max-len-a 0 --max-len-b 50 --remove-bpe sentencepiece --tokenizer moses)
