#!/usr/bin/env bash
# Prepares Multi30k, English to German, from the files of Revisit-MMT (Wu et al., 2021): tokenized, lowercased, in joint BPE.
#   recipes/data/multi30k_en_de.sh
# raw/ is the same text with the pieces joined: tokenized lowercase words, which the published score compares.
# DATA_ROOT  folder with multi30k_en_de_bpe/{train,valid,test.2016}.{en,de}.gz; without it the files, uncompressed in the
#            repository, are downloaded (5 MB)
# Writes $OUT/data/multi30k_en_de/{raw,pieces,bin}
source "$(dirname "$0")/tools.sh"

URL=https://raw.githubusercontent.com/LividWo/Revisit-MMT/master/data/multi30k-en-de
SET=$OUT/data/multi30k_en_de
RAW=$SET/raw PIECES=$SET/pieces BIN=$SET/bin

corpus() {
    local part name language file
    for part in train:29000 valid:1014 test.2016:1000; do
        for language in en de; do
            name=${part%:*} file=$PIECES/${part%%[.:]*}.$language
            if [ -n "${DATA_ROOT:-}" ]; then
                obtain "multi30k_en_de_bpe/$name.$language.gz" "$URL/$name.$language" "$file.gz"
                run_into "$file" gzip -dc "$file.gz"
            else
                obtain "multi30k_en_de_bpe/$name.$language" "$URL/$name.$language" "$file"
            fi
            lines "$file" "${part#*:}"
            run_through "$file" "$RAW/${file##*/}" sed -E 's/@@( |$)//g'
        done
    done
}

binarization() {
    binarize_sets "$BIN" "$PIECES/*" --source-lang en --target-lang de --joined-dictionary --workers "$OMP_NUM_THREADS"
}

need fairseq-preprocess
run mkdir -p "$RAW" "$PIECES"
stages "$PIECES" corpus
stages "$BIN" binarization
