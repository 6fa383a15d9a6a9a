#!/usr/bin/env bash
# Prepares speech for fairseq's speech_to_text: download, compute filterbanks, write manifests, dictionary and configuration.
# CORPUS     digits (default): the Free Spoken Digit Dataset, joined into sequences of spoken digits
#            librispeech: all 960 hours, 10,000 unigram pieces; downloads about 60 GB, unpacks as much and writes 120 GB of features
# ROUNDS     digits: occurrences of each training recording (default 8)
# HELD_OUT   digits: speakers of the test set alone, separated by commas (default: all speakers are in all sets)
# DATA_ROOT  folder with fsdd.tar or librispeech/SET.tar.gz; without it the files are downloaded from the data sets' homes
# Writes $OUT/librispeech/digits-ROUNDS[-without-HELD_OUT] or $OUT/librispeech/librispeech; finished stages are skipped.
source "$(dirname "$0")/../data/tools.sh"

CORPUS=${CORPUS:-digits}
ROUNDS=${ROUNDS:-8}
HELD_OUT=${HELD_OUT:-}
HERE=$ROOT/recipes/librispeech
export PYTHONPATH=$STEPS:$PYTHONPATH
DIGITS_URL=https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/heads/master.tar.gz
LIBRISPEECH_URL=https://www.openslr.org/resources/12
# SHA-256 of each archive, from torchaudio.
LIBRISPEECH="
dev-clean:76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3
dev-other:12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365
test-clean:39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23
test-other:d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29
train-clean-100:d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2
train-clean-360:146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf
train-other-500:ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2"

# Unpacks the recordings, wherever they are in the archive, and checks their number against the published one.
digit_recordings() {
    obtain fsdd.tar $DIGITS_URL "$RAW/fsdd.tar"
    run tar --extract --file "$RAW/fsdd.tar" --directory "$RAW" --wildcards '*recordings/*.wav'
    expect "$RAW" 3000 recordings files "$RAW" '*_*_*.wav'
    run_into "$RAW/recordings.txt" find "$RAW" -name '0_george_0.wav' -printf '%h\n'
}

digit_sequences() {
    local recordings=$RAW/recordings
    if [ "$DRY_RUN" != 1 ]; then recordings=$(cat "$RAW/recordings.txt"); fi
    run python "$HERE/digits.py" "$recordings" "$BIN" --rounds "$ROUNDS" --held-out "$HELD_OUT"
}

# Unpacks the archive of one set and computes its features.
librispeech_set() {
    obtain "librispeech/$SET.tar.gz" "$LIBRISPEECH_URL/$SET.tar.gz" "$RAW/$SET.tar.gz" "$SUM"
    run tar --extract --gzip --file "$RAW/$SET.tar.gz" --directory "$RAW"
    run python "$HERE/corpus.py" features "$RAW/LibriSpeech" "$BIN" "$SET"
}

# 9,999 pieces, because fairseq's dictionary has one symbol that sentencepiece lacks: 10,000 in all.
vocabulary() {
    run python "$HERE/corpus.py" text "$BIN" "$BIN/train.txt"
    run python "$STEPS/segment.py" train "$BIN/unigram.model" --kind unigram --pieces 9999 "$BIN/train.txt"
    run python "$HERE/corpus.py" configure "$BIN" "$BIN/unigram.model"
}

need fairseq-train
RAW=$OUT/librispeech/raw-$CORPUS
case $CORPUS in
digits)
    BIN=$OUT/librispeech/digits-$ROUNDS${HELD_OUT:+-without-$HELD_OUT}
    stages "$RAW" digit_recordings
    stages "$BIN" digit_sequences
    ;;
librispeech)
    BIN=$OUT/librispeech/librispeech
    if [ "$DRY_RUN" != 1 ]; then mkdir -p "$RAW"; fi
    for line in $LIBRISPEECH; do
        SET=${line%:*} SUM=${line#*:}
        stages "$BIN/$SET" librispeech_set
    done
    stages "$BIN" vocabulary
    ;;
*) fail "CORPUS=$CORPUS: must be digits or librispeech" ;;
esac
