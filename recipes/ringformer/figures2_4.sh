#!/usr/bin/env bash
# RingFormer, Figures 2 and 4: linear CKA between the passes of the vanilla model and those of each recurrent one.
#
#   recipes/ringformer/figures2_4.sh translation|images [options of recipes/figures/cka.py]
#
# translation  encoder and decoder of the rows of Table 1
# images       the rows of Table 2
# SCALE smoke (default), small, paper: of the rows, which are trained first unless they have been; SEED, OUT, DRY_RUN, THREADS
# as in recipes/common.sh, DATA_ROOT as in the table's script. Pictures and their numbers go to $OUT/ringformer.
source "$(dirname "$0")/../common.sh"
source "$ROOT/recipes/lib/images.sh"

SCALE=${SCALE:-smoke}
WHAT=${1:-}
case $WHAT in
translation) SCRIPT=ringformer/table1 FILE=average.pt FIRST=vanilla OTHERS="one_wide_ffn universal ringformer" ;;
images) SCRIPT=ringformer/table2 FILE=last.pth.tar FIRST=vit OTHERS="owf uit ringformer" LABEL=$(image_scale) ;;
*) fail "usage: $0 translation|images [options of recipes/figures/cka.py]" ;;
esac
shift

trained $SCRIPT $FIRST $OTHERS
labelled $SCRIPT $FILE $FIRST $OTHERS
for other in "${RUNS[@]:1}"; do
    run python "$ROOT/recipes/figures/cka.py" "${RUNS[0]}" "$other" --output "$OUT/ringformer/cka-$WHAT-$SCALE-${other%%=*}.svg" "$@"
done
