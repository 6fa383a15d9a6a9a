#!/usr/bin/env bash
# A translation set that you have prepared, where a table's own is not public.
#   PREPARED=FOLDER recipes/data/prepared.sh
# PREPARED  a folder with bin/, which fairseq-preprocess has written, and the plain references of its test sets,
#           raw/test.LANGUAGE, raw/test1.LANGUAGE, ...
# Makes $OUT/data/prepared a link to it.
source "$(dirname "$0")/../common.sh"

if [ "$DRY_RUN" != 1 ]; then
    [ -n "${PREPARED:-}" ] || fail "PREPARED: must name a folder with bin/ and raw/ (see the head of $0)"
    [ -d "$PREPARED/bin" ] && [ -d "$PREPARED/raw" ] || fail "PREPARED=$PREPARED: holds no bin/ and raw/"
    mkdir -p "$OUT/data"
fi
run ln -sfn "$(realpath "${PREPARED:-prepared}")" "$OUT/data/prepared"
