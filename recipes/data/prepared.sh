#!/usr/bin/env bash
# Links a translation data set that you have prepared yourself, for tables whose data are not public.
#   PREPARED=FOLDER recipes/data/prepared.sh
# PREPARED  folder with bin/, the output of fairseq-preprocess, and the plain references of its test sets,
#           raw/test.LANGUAGE, raw/test1.LANGUAGE, ...
# Makes $OUT/data/prepared a link to it.
source "$(dirname "$0")/../common.sh"

if [ "$DRY_RUN" != 1 ]; then
    [ -n "${PREPARED:-}" ] || fail "PREPARED: must name a folder with bin/ and raw/ (see the head of $0)"
    [ -d "$PREPARED/bin" ] && [ -d "$PREPARED/raw" ] || fail "PREPARED=$PREPARED: holds no bin/ and raw/"
    mkdir -p "$OUT/data"
fi
run ln -sfn "$(realpath "${PREPARED:-prepared}")" "$OUT/data/prepared"
