# What Takase & Kiyono's translation tables have in common; sourced by their scripts.
#
# Scale paper has the settings of the release: rate 2e-3 after 8,000 updates of warm-up, where the paper says 1e-3 and
# 4,000; 128 x 3,584 tokens an update, on 4 GPUs with 32 batches accumulated, or on as many GPUs as there are with as many
# batches as that takes (UPDATE_FREQ changes it). The last 10 epochs are averaged. If training diverges, the release says
# --clip-norm 1.0. Models of more than 6 passes start with Admin: the first batch profiles, by one command.
PAPER_FLAGS=(--optimizer adam --adam-betas "(0.9, 0.98)" --lr 2e-3 --lr-scheduler inverse_sqrt --warmup-updates 8000
    --warmup-init-lr 1e-7 --weight-decay 0.0 --clip-norm 0.0 --dropout 0.3 --criterion label_smoothed_cross_entropy
    --label-smoothing 0.1 --max-tokens 3584 --update-freq "${UPDATE_FREQ:-$((128 / (GPUS * NODES)))}" --max-update 50000
    --keep-last-epochs 20)
PAPER_AVERAGE=(--num-epoch-checkpoints 10)
PAPER_SEARCH=(--beam 4 --lenpen 1.0 --remove-bpe --tokenizer moses)
PAPER_SEARCH_OF=([newstest2014]="--lenpen 0.6")
ADMIN=(--init admin)
