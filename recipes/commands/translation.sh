#!/usr/bin/env bash
# Prints the commands of a translation row: prepare the data, train, average checkpoints, decode every test set, score.
#
# Scales (a row keeps its depth at every scale):
#   smoke  64 wide, 10 updates, on Multi30k if DATA_ROOT holds it, or else on words and phonemes; only shows that the row works
#   small  256 wide (WIDTH), 4,000 updates of about 900 target tokens on Multi30k: under an hour of one core at 4 + 4 passes
#   long   the same, for tables that train for fewer updates at scale small
#   paper  the data and the settings of the table
# WIDE=2 doubles the width of a row below scale paper; SCORED=loss scores a row by its last validation loss. VOCABULARY, a file of
# the data set, adds BLEU of its pieces; COMPOUNDS=1 adds BLEU of split compounds at scale paper.
# Below scale paper, all rows have the same width and training budget.
source "$(dirname "$0")/../common.sh"

TEST_SETS=() MORE_SCORES=() TOKENIZE=${TOKENIZE:-13a}
if [ "$SCALE" = paper ]; then
    FOLDER=$OUT/data/$DATA${SET:+/$SET} BIN=$FOLDER/bin
    read -r -a PAIR <<<"$LANGUAGES"
    while read -r name subset; do
        TEST_SETS+=("$name:$subset:$FOLDER/raw/$subset.${PAIR[1]}")
    done <<<"$TESTS"
    prepare "$DATA" ${SET:+"SET=$SET"}
    if [ -n "${VOCABULARY:-}" ]; then MORE_SCORES=(--pieces "$FOLDER/$VOCABULARY" --longest 48); fi
    if [ -n "${COMPOUNDS:-}" ]; then MORE_SCORES+=(--compounds "${PAIR[1]}"); fi
elif [ "$SCALE" = smoke ] && [ ! -d "${DATA_ROOT:-/nonexistent}/multi30k" ]; then
    BIN=$OUT/data/smoke/bin PIECES=$OUT/data/smoke/pieces/bpe.model PAIR=(letters phonemes)
    TEST_SETS=("test:test:$OUT/data/smoke/raw/test.phonemes")
    prepare smoke
else
    BIN=$OUT/multi30k/bin-6000 PIECES=$OUT/multi30k/pieces-6000/bpe.model PAIR=(de en)
    TEST_SETS=("test:test:$OUT/multi30k/raw/test_2016_flickr.en")
    prepare multi30k/prepare PIECES=6000
fi
if [ "$SCALE" != paper ] && [ -n "${VOCABULARY:-}" ]; then MORE_SCORES=(--pieces "$PIECES"); fi

array_of AVERAGE average
array_of SEARCH search
case $SCALE in
smoke) width=64 updates=10 save=5 warmup=2 batch=(--max-tokens 1024 --dropout 0.1) ;;
small | long) width=${WIDTH:-256} updates=4000 save=200 warmup=400 batch=(--max-tokens 1024 --dropout 0.1) ;;
paper) batches && settings=("${BATCHES[@]}") ;;
esac
if [ "$SCALE" != paper ]; then
    width=$((width * ${WIDE:-1}))
    settings=(--encoder-embed-dim $width --encoder-ffn-embed-dim $((4 * width)) --encoder-attention-heads 4
        --decoder-embed-dim $width --decoder-ffn-embed-dim $((4 * width)) --decoder-attention-heads 4
        --share-all-embeddings "${batch[@]}" --criterion label_smoothed_cross_entropy --label-smoothing 0.1
        --optimizer adam --adam-betas "(0.9, 0.98)" --lr 1e-3 --lr-scheduler cosine --warmup-updates $warmup
        --clip-norm 1.0 --max-update $updates --no-epoch-checkpoints
        --save-interval-updates $save --keep-interval-updates 5 --log-interval $((save / 5)))
    average=(--num-update-checkpoints $((updates / save < 5 ? updates / save : 5)))
    search=(--beam 5 --max-len-a 1.5 --max-len-b 10 --remove-bpe sentencepiece)
fi

model=$RUN/average.pt
if [ -n "${DECODE:-}" ]; then # DECODE: the checkpoint of another row and decoding flags; nothing is trained
    array_of DECODE decode
    model=${decode[0]} search+=("${decode[@]:1}" "$@")
else
    heading training
    train_fairseq "$BIN" --source-lang "${PAIR[0]}" --target-lang "${PAIR[1]}" --log-format json \
        "${settings[@]}" "$@"
    if [ "${SCORED:-}" = loss ]; then
        heading scoring
        run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/loss.py" "$RUN/train.log"
        exit
    fi
    heading averaging
    if [ "${average[0]:-best}" = best ]; then
        run cp "$RUN/checkpoints/checkpoint_best.pt" "$RUN/average.pt"
    else
        run python -m fairseq_plugin.average --inputs "$RUN/checkpoints" "${average[@]}" --output "$RUN/average.pt"
    fi
fi
if [ "$SCALE" != paper ] && [ -z "${DECODE:-}" ]; then run cp "$PIECES" "$RUN/sentencepiece.bpe.model"; fi # where the hub interface looks

scored=()
for set in "${TEST_SETS[@]}"; do
    IFS=: read -r name subset reference <<<"$set"
    read -r -a more <<<"$(sed -n "s/^$name //p" <<<"${SEARCH_OF:-}")"
    if [ "$SCALE" != paper ]; then more=(); fi
    heading "decoding-$name"
    run_into "$RUN/generate-$name.log" fairseq-generate "$BIN" --user-dir "$ROOT/fairseq_plugin" \
        --path "$model" --source-lang "${PAIR[0]}" --target-lang "${PAIR[1]}" \
        --gen-subset "$subset" --max-tokens 4096 --required-batch-size-multiple 1 "${search[@]}" "${more[@]}"
    scored+=("$RUN/generate-$name.log=$reference")
done
heading scoring
run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/score.py" "${scored[@]}" --tokenize $TOKENIZE \
    "${MORE_SCORES[@]}"
