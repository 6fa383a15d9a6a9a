# Depth, data and budget of the scale for every script that trains on Multi30k. Source it after recipes/lib/translation.sh,
# with SCALE and CALL set.
PIECES=${PIECES:-6000}
TABLE=${TABLE:-multi30k}

case $SCALE in
smoke) PASSES=2 ;;
small) PASSES=4 ;;
gpu) PASSES=6 ;;
*) fail "SCALE=$SCALE: must be smoke, small or gpu" ;;
esac

half=$((PASSES / 2))
unique=(--encoder-unique-layers "$half" --decoder-unique-layers "$half")
layers=(--encoder-layers "$PASSES" --decoder-layers "$PASSES")
translation_budget "$SCALE" # widths and batches
BIN=$OUT/multi30k/bin-$PIECES PAIR=(de en) TESTS=(test:test) TOKENIZE=13a
REFERENCES=("$OUT/multi30k/raw/test_2016_flickr.en")
if [ "$SCALE" = smoke ]; then RESULTS=${RESULTS:-$OUT/multi30k/results.csv}; fi

prepare() { PIECES=$PIECES OUT=$OUT DRY_RUN=$DRY_RUN "$ROOT/recipes/multi30k/prepare.sh"; }

# recording ROW ARCH: how `once` records a run.
recording() {
    RECORD=(--results "${RESULTS:-$ROOT/recipes/multi30k/results.csv}" --table "$TABLE" --row "$1" --arch "$2"
        --scale "$SCALE" --seed "$SEED" --command "$CALL" --checkpoint average.pt --metrics bleu chrf)
}
