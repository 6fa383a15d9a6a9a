#!/usr/bin/env bash
# Links a translation data set that you have prepared yourself, for Table 2 of Takase & Kiyono, whose two sets are not public.
#   SET=genuine|synthetic PREPARED=FOLDER recipes/data/prepared.sh
# SET       genuine: 44.2M pairs; synthetic: these and 284.3M back-translated ones
# PREPARED  the first time, a folder with bin/, the output of fairseq-preprocess, and the plain references of its test sets,
#           raw/test.LANGUAGE, raw/test1.LANGUAGE, ..., raw/test8.LANGUAGE: newstest2010, 2011, ..., 2016, 2018 and 2019. Its
#           text has to be Moses' tokens in pieces of subword-nmt (with @@), by which translations are made plain text.
# VERIFY    0 accepts another number of pairs
# Makes $OUT/data/prepared/SET a link to it.
source "$(dirname "$0")/tools.sh"

LINK=$OUT/data/prepared/${SET:-}
case ${SET:-} in
genuine) LEAST=44150000 MOST=44250000 ;;
synthetic) LEAST=328400000 MOST=328600000 ;;
*) fail "SET=${SET:-}: must be genuine or synthetic" ;;
esac

# check: fail unless PREPARED holds this set, and its runs have used no other.
check() {
    local index=("$PREPARED"/bin/train.*.idx) found
    [ -d "$PREPARED/raw" ] && [ -f "${index[0]}" ] || fail "PREPARED=$PREPARED: holds no raw/ and bin/train.*.idx"
    [ ! -e "$LINK" ] || [ "$LINK" -ef "$PREPARED" ] ||
        fail "PREPARED=$PREPARED: the $SET pairs have been $(realpath "$LINK"); to use others, remove $LINK"
    found=$(($(od --address-radix=n --format=d8 --skip-bytes=18 --read-bytes=8 "${index[0]}"))) # in the head of fairseq's index
    [ "$VERIFY" != 1 ] || { [ "$found" -ge $LEAST ] && [ "$found" -lt $MOST ]; } ||
        fail "PREPARED=$PREPARED: $found pairs, but the $SET set has $LEAST to $MOST (VERIFY=0 accepts it)"
}

if [ -z "${PREPARED:-}" ] && [ -d "$LINK/bin" ]; then
    log "$LINK: linked before"
    exit
fi
if [ "$DRY_RUN" != 1 ]; then
    [ -n "${PREPARED:-}" ] || fail "PREPARED: must name a folder with the $SET pairs in bin/ and raw/ (see the head of $0)"
    check
fi
run mkdir -p "$OUT/data/prepared"
run ln -sfn "$(realpath -m "${PREPARED:-prepared}")" "$LINK"
