# A row of a translation table: prepare the data, train, average, decode, score, record. Source it after common.sh.
#
#   translation ARCH PARAMETERS VALUE [flags of fairseq-train]
#
# with the paper's parameters and result ("-" where they are not known), for `listed`. Scales:
#   smoke  64 wide, 50 updates, on Multi30k where DATA_ROOT holds it, otherwise on number words: under 2 minutes on 2 cores;
#          shows that the recipe works, no more
#   small  256 wide, 4,000 updates of about 900 target tokens, on Multi30k: about half an hour on a core at 4 + 4 passes
#   paper  the data and the settings of the table
# A row keeps its depth at every scale. The table's script sets
#   TABLE          name of the table
#   PAPER_DATA     the script of recipes/data that prepares its data, without .sh
#   PAPER_PAIR     source and target language, as in "de en"
#   PAPER_FLAGS    of fairseq-train
#   PAPER_AVERAGE  of fairseq_plugin.average, or "best" for the checkpoint of the best validation
#   PAPER_SEARCH   of fairseq-generate; for one test set more in PAPER_SEARCH_OF[NAME]
#   PAPER_TESTS    the test sets, each NAME:SUBSET with the host's name of it, test, test1, ...
# and may set SMALL_WIDTH (default 256) and SMALL_FLAGS (of fairseq-train, in the place of the others), and for one row
# WIDE=2 where that row is twice as wide as the others.
# PRECISION  bf16 (default), fp16 (on a GPU) or fp32
# RESULTS    the table that the run is appended to

PRECISION=${PRECISION:-bf16}
SMALL_FLAGS=()
declare -A PAPER_SEARCH_OF

case $PRECISION in
bf16) NUMBERS=(--bf16) ;;
fp16) NUMBERS=(--fp16) ;;
fp32) NUMBERS=() ;;
*) fail "PRECISION=$PRECISION: must be bf16, fp16 or fp32" ;;
esac

# The data of the scale: which script prepares it, where it lies, its languages, and its test sets with the references.
translation_data() {
    TESTS=(test:test) TOKENIZE=13a
    if [ "$SCALE" = paper ]; then
        PREPARE=$ROOT/recipes/data/$PAPER_DATA.sh BIN=$OUT/data/$PAPER_DATA/bin TESTS=("${PAPER_TESTS[@]}")
        read -r -a PAIR <<<"$PAPER_PAIR"
        REFERENCES=("${TESTS[@]#*:}")
        REFERENCES=("${REFERENCES[@]/#/$OUT/data/$PAPER_DATA/raw/}")
        REFERENCES=("${REFERENCES[@]/%/.${PAIR[1]}}")
    elif [ "$SCALE" = smoke ] && [ ! -d "${DATA_ROOT:-/nonexistent}/multi30k" ]; then
        PREPARE=$ROOT/recipes/numbers/prepare.sh BIN=$OUT/numbers/smoke/bin PAIR=(en de) TOKENIZE=char
        REFERENCES=("$OUT/numbers/smoke/test.de")
    else
        PREPARE=$ROOT/recipes/multi30k/prepare.sh BIN=$OUT/multi30k/bin-6000 PAIR=(de en)
        REFERENCES=("$OUT/multi30k/raw/test_2016_flickr.en")
    fi
}

# translation_budget smoke|small|gpu: sets SETTINGS, AVERAGE and SEARCH, the same widths and budget for all rows.
translation_budget() {
    local width=${SMALL_WIDTH:-256} updates save warmup batch=(--max-tokens 1024 --dropout 0.1)
    case $1 in
    smoke) width=64 updates=50 save=10 warmup=10 ;;
    small) updates=4000 save=200 warmup=400 ;;
    gpu) updates=12000 save=500 warmup=1000 batch=(--max-tokens 4096 --dropout 0.3) ;;
    esac
    width=$((width * ${WIDE:-1}))
    SETTINGS=(--encoder-embed-dim $width --encoder-ffn-embed-dim $((4 * width)) --encoder-attention-heads 4
        --decoder-embed-dim $width --decoder-ffn-embed-dim $((4 * width)) --decoder-attention-heads 4
        --share-all-embeddings "${batch[@]}" --criterion label_smoothed_cross_entropy --label-smoothing 0.1
        --optimizer adam --adam-betas "(0.9, 0.98)" --lr 1e-3 --lr-scheduler cosine --warmup-updates $warmup
        --clip-norm 1.0 --max-update $updates --no-epoch-checkpoints
        --save-interval-updates $save --keep-interval-updates 5 --log-interval $((save / 5)))
    AVERAGE=(--num-update-checkpoints 5)
    SEARCH=(--beam 5 --max-len-a 1.5 --max-len-b 10 --remove-bpe sentencepiece)
}

# The same variables at the scale.
translation_settings() {
    case $SCALE in
    smoke) translation_budget smoke ;;
    small) translation_budget small && SETTINGS+=("${SMALL_FLAGS[@]}") ;;
    paper) SETTINGS=("${PAPER_FLAGS[@]}") AVERAGE=("${PAPER_AVERAGE[@]}") SEARCH=("${PAPER_SEARCH[@]}") ;;
    *) fail "SCALE=$SCALE: must be smoke, small or paper" ;;
    esac
}

translation_training() {
    run_training "$RUN/train.log" "$BIN" --user-dir "$ROOT/fairseq_plugin" --arch "$ARCH" \
        --source-lang "${PAIR[0]}" --target-lang "${PAIR[1]}" --save-dir "$RUN/checkpoints" --seed "$SEED" \
        --log-format json --required-batch-size-multiple 1 --update-epoch-batch-itr True \
        "${NUMBERS[@]}" "${SETTINGS[@]}" "${FLAGS[@]}"
}

translation_averaging() {
    if [ "${AVERAGE[0]}" = best ]; then
        run cp "$RUN/checkpoints/checkpoint_best.pt" "$RUN/average.pt"
    else
        run python -m fairseq_plugin.average --inputs "$RUN/checkpoints" "${AVERAGE[@]}" --output "$RUN/average.pt"
    fi
}

translation_decoding() {
    local test more
    for test in "${TESTS[@]}"; do
        read -r -a more <<<"${PAPER_SEARCH_OF[${test%:*}]:-}"
        run_into "$RUN/generate-${test%:*}.log" fairseq-generate "$BIN" --user-dir "$ROOT/fairseq_plugin" \
            --path "$RUN/average.pt" --source-lang "${PAIR[0]}" --target-lang "${PAIR[1]}" \
            --gen-subset "${test#*:}" --max-tokens 4096 --required-batch-size-multiple 1 "${SEARCH[@]}" "${more[@]}"
    done
}

translation_scoring() {
    local index files=()
    for index in "${!TESTS[@]}"; do files+=("$RUN/generate-${TESTS[index]%:*}.log=${REFERENCES[index]}"); done
    run_into "$RUN/scores.json" python "$ROOT/recipes/metrics/score.py" "${files[@]}" --tokenize $TOKENIZE
    if [ "$DRY_RUN" != 1 ]; then cat "$RUN/scores.json"; fi
}

translation() {
    local names=()
    if listed "$@"; then return; fi
    ARCH=$1 FLAGS=("${@:4}")
    translation_settings
    translation_data
    if [ ${#TESTS[@]} -gt 1 ]; then names=("${TESTS[@]%:*}"); fi
    recorded "$ARCH" "$3" --checkpoint average.pt --metrics bleu chrf "${names[@]/#/bleu_}"
    OUT=$OUT DRY_RUN=$DRY_RUN SCALE=smoke "$PREPARE"
    once "$RUN" translation_training translation_averaging translation_decoding translation_scoring
}
