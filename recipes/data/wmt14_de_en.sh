#!/usr/bin/env bash
# Prepares WMT14, German to English, in BiBERT's vocabulary, for RingFormer's translation models.
#   recipes/data/wmt14_de_en.sh
# Training: Europarl v7, Common Crawl and News Commentary v9, without pairs that have an empty side (the copy on the Hugging
# Face hub, made of the same corpora, has 4,508,785 pairs). Validation: newstest2013. Test: newstest2014, all 3,003
# sentences. Which copy of WMT14 the authors used is not known.
# The vocabulary (52,000, cased) is jhu-clsp/bibert-ende's, published without a checksum. Sentences are truncated to 48 pieces,
# as in the published code. It adds [CLS] and [SEP] around a sentence; they correspond to fairseq's <s> and </s>. fairseq adds
# these itself, except for the <s> of the source, which is therefore in the files.
# DATA_ROOT  folder with wmt/training-parallel-{europarl-v7,commoncrawl,nc-v9}.tgz, bibert-ende/vocab.txt,
#            newstest/wmt13.test.tgz and newstest/wmt14_full.test-full.tgz; without it they are downloaded (1.7 GB)
# Needs pip install '.[data]'. Writes $OUT/data/wmt14_de_en/{source,raw,pieces,bin}. For plain text, decode with fairseq's
# --remove-bpe sentencepiece --tokenizer moses, which does not join everything that BERT splits (ringformer/RESULTS.md).
source "$(dirname "$0")/tools.sh"

SET=$OUT/data/wmt14_de_en
SOURCE=$SET/source RAW=$SET/raw PIECES=$SET/pieces BIN=$SET/bin
VOCABULARY=https://huggingface.co/jhu-clsp/bibert-ende/resolve/main/vocab.txt

corpus() {
    local name language parts
    for name in europarl-v7 commoncrawl news-commentary-v9; do parallel $name de "$SOURCE/$name"; done
    for language in de en; do
        parts=("$SOURCE"/{europarl-v7,commoncrawl,news-commentary-v9}."$language")
        run_into "$SOURCE/all.$language" cat "${parts[@]}"
        run rm "${parts[@]}"
    done
    run python "$STEPS/clean.py" "$SOURCE/all" "$RAW/train" de en
    run rm "$SOURCE"/all.{de,en}
}

tests() {
    newstest wmt13 de en "$RAW/valid"
    newstest wmt14/full de en "$RAW/test"
}

segmentation() {
    local name
    obtain bibert-ende/vocab.txt "$VOCABULARY" "$SOURCE/vocab.txt"
    run python "$STEPS/wordpieces.py" dictionary "$SOURCE/vocab.txt" "$PIECES/dict.txt"
    for name in train valid test; do
        run python "$STEPS/wordpieces.py" encode "$SOURCE/vocab.txt" "$RAW/$name.de" "$PIECES/$name.de" --longest 48 --start
        run python "$STEPS/wordpieces.py" encode "$SOURCE/vocab.txt" "$RAW/$name.en" "$PIECES/$name.en" --longest 48
    done
}

binarization() {
    binarize_sets "$BIN" "$PIECES/*" --source-lang de --target-lang en --joined-dictionary --srcdict "$PIECES/dict.txt" \
        --workers "$OMP_NUM_THREADS"
}

need fairseq-preprocess
package sacrebleu tokenizers
run mkdir -p "$SOURCE" "$RAW" "$PIECES"
stages "$RAW" corpus tests
stages "$PIECES" segmentation
stages "$BIN" binarization
