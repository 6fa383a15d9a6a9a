#!/usr/bin/env bash
# RingFormer, Figures 2 (base) and 4 (large): linear CKA between the layers of the vanilla model and of each recurrent model,
# over 3,000 test sentences.
#   recipes/ringformer/figures2_4.sh base|large [options of recipes/figures/cka.py]
source "$(dirname "$0")/../common.sh"

case ${1:-} in
base) FIGURE=figure2 ROWS=(vanilla one_wide_ffn universal ringformer) ;;
large) FIGURE=figure4 ROWS=({vanilla,one_wide_ffn,universal,ringformer}_large) ;;
*) fail "usage: $0 base|large [options of recipes/figures/cka.py]" ;;
esac
shift
FLAGS=("$@")
runs cka.py ringformer/table1 average.pt "${ROWS[@]}"
for other in "${RUNS[@]:1}"; do
    run python "$ROOT/recipes/figures/cka.py" "${RUNS[0]}" "$other" --split test --samples 3000 --upper \
        --output "$OUT/ringformer/$FIGURE-$SCALE-${other%%=*}.svg" "$@"
done
