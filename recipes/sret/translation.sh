#!/usr/bin/env bash
# SReT, section 5.6 and Figure 7: recursion in translation, IWSLT14 German to English and WMT14 English to German.
#
#   recipes/sret/translation.sh ROW|all|list [flags of fairseq-train]
#
# PRECISION  fp32 (default), bf16 or fp16
# SCALE, RESULTS as in recipes/lib/translation.sh; SEED, OUT, DRY_RUN, THREADS, GPUS, NODES as in recipes/common.sh
#
# The paper names the host's two architectures and leaves the rest open, see fairseq_plugin/models/recursive.py. Scale paper
# is what fairseq's own pages train them with: IWSLT14 with 4,096 tokens an update on one GPU, dropout 0.3, rate 5e-4 after
# 4,000 updates of warm-up, 50,000 updates; WMT with 8 x 3,584 x 16 tokens, rate 1e-3, 30,000 updates. The residual
# coefficients over training are in the log: recipes/analysis/coefficients draws them.
source "$(dirname "$0")/../common.sh"
PRECISION=${PRECISION:-fp32}
source "$ROOT/recipes/lib/translation.sh"

TABLE="SReT 5.6"
SMALL_WIDTH=128
SMALL_FLAGS=(--lr 5e-4 --warmup-updates 1000 --max-update 2400 --save-interval-updates 100 --log-interval 20)
COMMON=(--share-all-embeddings --optimizer adam --adam-betas "(0.9, 0.98)" --lr-scheduler inverse_sqrt --warmup-updates 4000
    --warmup-init-lr 1e-7 --clip-norm 0.0 --dropout 0.3 --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --keep-last-epochs 10)
PAPER_AVERAGE=(--num-epoch-checkpoints 10)

iwslt() {
    PAPER_DATA=iwslt14_de_en PAPER_PAIR="de en" PAPER_TESTS=(test:test)
    PAPER_FLAGS=("${COMMON[@]}" --lr 5e-4 --weight-decay 1e-4 --max-tokens 4096 --max-update 50000)
    PAPER_SEARCH=(--beam 5 --remove-bpe --tokenizer moses)
    translation recursive_iwslt_de_en "$@"
}

wmt() {
    PAPER_DATA=wmt16_en_de PAPER_PAIR="en de" PAPER_TESTS=(newstest2014:test4)
    PAPER_FLAGS=("${COMMON[@]}" --lr 1e-3 --max-tokens 3584 --update-freq "${UPDATE_FREQ:-16}" --max-update 30000)
    PAPER_SEARCH=(--beam 4 --lenpen 0.6 --remove-bpe --tokenizer moses)
    translation recursive_wmt_en_de "$@"
}

row_iwslt() { iwslt - - --nll "$@"; }
row_iwslt_no_nll() { iwslt - - "$@"; }
row_iwslt_no_lrc() { iwslt - - --nll --no-lrc "$@"; }
row_iwslt_plain() { iwslt - - --no-lrc "$@"; }
# The control: the same blocks, each of which runs once.
row_iwslt_once() { iwslt - - --no-lrc --block-loops 1 --encoder-layers 6 --decoder-layers 6 "$@"; }
row_wmt() { wmt - - --nll "$@"; }
row_wmt_no_nll() { wmt - - "$@"; }
row_wmt_no_lrc() { wmt - - --nll --no-lrc "$@"; }

table "$@"
