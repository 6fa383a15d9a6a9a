#!/usr/bin/env bash
# Speech recognition (Takase & Kiyono, Table 4): train one architecture at one budget, average, decode, record its errors.
#
#   recipes/librispeech/train.sh ROW|all|list [flags of fairseq-train]
#
# ROW   vanilla (each stored layer runs once), sequence, cycle, cycle_rev (as many stored layers, each run twice),
#       universal (a single layer)
# SCALE smoke  sequences of spoken digits, 64/256, 40 updates: under 2 minutes on 2 cores; shows that the recipe works
#       small  sequences of spoken digits, 128/512, encoder and decoder of 3 + 2 stored layers, 1,000 updates of about 35
#              sequences, the first 300 on those of one or two digits alone: a few minutes on one core
#       long   as small, 2,000 updates
#       paper  LibriSpeech at the published settings: Adam (0.9, 0.98), learning rate 0.001, inverse square root, 4,000
#              updates of warm-up, 150,000 updates; batches, label smoothing, clipping, masking, averaging of 10 checkpoints
#              and the search are those of the host's recipe for this corpus, which the paper follows
# SEED, OUT, DRY_RUN, THREADS as in recipes/common.sh; DATA_ROOT as in prepare.sh
# PRECISION  fp32 (default) or bf16
# RESULTS    the table that the run is appended to
source "$(dirname "$0")/../common.sh"

SCALE=${SCALE:-smoke}
PRECISION=${PRECISION:-fp32}

# The one place where scales differ: size, stored layers of encoder and decoder, budget, and what is evaluated.
case $SCALE in
smoke) CORPUS=digits ROUNDS=1 WIDTH=64 STORED=(2 1) SHORT=20 UPDATES=40 SAVE=4 WARMUP=20 FRAMES=3000 ;;
small) CORPUS=digits ROUNDS=8 WIDTH=128 STORED=(3 2) SHORT=300 UPDATES=1000 SAVE=100 WARMUP=200 FRAMES=6000 ;;
long) CORPUS=digits ROUNDS=8 WIDTH=128 STORED=(3 2) SHORT=300 UPDATES=2000 SAVE=100 WARMUP=200 FRAMES=6000 ;;
paper) CORPUS=librispeech ROUNDS=1 UPDATES=150000 SAVE=2000 WARMUP=4000 FRAMES=40000 ;;
*) fail "SCALE=$SCALE: must be smoke, small, long or paper" ;;
esac
case $PRECISION in
bf16) NUMBERS=(--bf16) ;;
fp32) NUMBERS=() ;;
*) fail "PRECISION=$PRECISION: must be fp32 or bf16" ;;
esac
if [ $CORPUS = librispeech ]; then
    BIN=$OUT/librispeech/librispeech
    TRAIN=train-clean-100,train-clean-360,train-other-500 DEV=dev-clean TEST=(test-clean test-other) LONGEST=200 KEEP=10
    SIZES=() BUDGET=(--update-freq 8 --clip-norm 10.0) STAGES=(training)
else
    BIN=$OUT/librispeech/digits-$ROUNDS TRAIN=train DEV=dev TEST=(test) LONGEST=20 KEEP=5
    SIZES=(--encoder-embed-dim $WIDTH --encoder-ffn-embed-dim $((4 * WIDTH)) --encoder-attention-heads 4
        --decoder-embed-dim $WIDTH --decoder-ffn-embed-dim $((4 * WIDTH)) --decoder-attention-heads 4
        --conv-channels $WIDTH --conv-kernel-sizes 5,5,5 --dropout 0.1)
    BUDGET=(--clip-norm 1.0) STAGES=(short_sequences training)
fi
TABLE="Takase 4"
TASK=(--user-dir "$ROOT/fairseq_plugin" --task speech_to_text --config-yaml config.yaml)

# Without them attention finds no alignment for a long time.
short_sequences() { train_on train-short "$SHORT"; }

training() { train_on $TRAIN $UPDATES; }

# From where the last call stopped: train_on SETS UPDATES
train_on() {
    run_training "$RUN/train.log" "$BIN" "${TASK[@]}" --arch "$ARCH" --save-dir "$RUN/checkpoints" --seed "$SEED" \
        --train-subset "$1" --valid-subset $DEV --share-decoder-input-output-embed \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --report-accuracy \
        --optimizer adam --adam-betas "(0.9, 0.98)" --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates $WARMUP \
        --max-tokens $FRAMES --max-update "$2" --required-batch-size-multiple 1 --update-epoch-batch-itr True \
        --no-epoch-checkpoints --save-interval-updates $SAVE --keep-interval-updates $KEEP \
        --log-interval $((SAVE / 4)) "${BUDGET[@]}" "${SIZES[@]}" "${NUMBERS[@]}" "${FLAGS[@]}"
}

averaging() {
    run python -m fairseq_plugin.average --inputs "$RUN/checkpoints" --num-update-checkpoints $KEEP \
        --output "$RUN/average.pt"
}

decoding() {
    local name
    for name in "${TEST[@]}"; do
        run_into "$RUN/$name.log" fairseq-generate "$BIN" "${TASK[@]}" --path "$RUN/average.pt" --gen-subset "$name" \
            --beam 5 --max-len-b $LONGEST --max-tokens 50000 --scoring wer --required-batch-size-multiple 1
    done
}

scoring() {
    run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/score_speech.py" "$RUN" "$BIN" "${TEST[@]}"
    if [ "$DRY_RUN" != 1 ]; then cat "$RUN/scores.json"; fi
}

# train ARCH TIMES UNIQUE [flags]: of the stored layers, how often each runs, and how many of them are different.
train() {
    local layers=()
    if listed "$1" - - "${@:4}"; then return; fi
    if [ $CORPUS = digits ]; then
        layers=(--encoder-layers $((STORED[0] * $2)) --encoder-unique-layers $((${3/all/STORED[0]}))
            --decoder-layers $((STORED[1] * $2)) --decoder-unique-layers $((${3/all/STORED[1]})))
    fi
    ARCH=$1 FLAGS=("${layers[@]}" "${@:4}")
    recorded "$ARCH" - --checkpoint average.pt --metrics "${TEST[@]/#/wer_}"
    CORPUS=$CORPUS ROUNDS=$ROUNDS OUT=$OUT DRY_RUN=$DRY_RUN "$(dirname "$0")/prepare.sh"
    once "$RUN" "${STAGES[@]}" averaging decoding scoring
}

row_vanilla() { train s2t_vanilla 1 all "$@"; }
row_universal() { train s2t_universal 1 1 "$@"; }
row_sequence() { train s2t_sequence 2 all "$@"; }
row_cycle() { train s2t_cycle 2 all "$@"; }
row_cycle_rev() { train s2t_cycle_rev 2 all "$@"; }

table "$@"
