#!/usr/bin/env bash
# Prepares WMT14, English to French, with 40,000 joint BPE operations as in Ott et al. (2018), for Takase & Kiyono's Table 3.
#   recipes/data/wmt14_en_fr.sh
# Training: Europarl v7, Common Crawl, UN, News Commentary v9 and the 10^9 corpus, prepared as in fairseq's script for this
# pair: punctuation and numbers normalized, Moses' tokenizer with hyphens split off, pairs of 1 to 250 pieces with a length
# ratio of at most 1.5 (the paper counts 35.8M pairs). Validation and test: newstest2013; test1: newstest2014.
# Differs from fairseq's script: sacremoses replaces the Perl scripts, so a few pairs and merges differ; the validation set is
# newstest2013, as in the paper's table, instead of every 1,333rd training pair; the test sets are normalized as well.
# DATA_ROOT  folder with wmt/training-parallel-{europarl-v7,commoncrawl,un,nc-v9}.tgz, wmt/training-giga-fren.tar,
#            newstest/wmt13.test.tgz and newstest/wmt14_full.test-full.tgz; without it they are downloaded (6 GB)
# Needs pip install '.[data]', 60 GB of disk and several hours. Writes $OUT/data/wmt14_en_fr/{source,raw,pieces,bin}; raw/ has
# only the test sets.
source "$(dirname "$0")/tools.sh"

SET=$OUT/data/wmt14_en_fr
SOURCE=$SET/source RAW=$SET/raw PIECES=$SET/pieces BIN=$SET/bin

corpus() {
    local name language parts
    for name in europarl-v7 commoncrawl un news-commentary-v9 giga; do parallel $name fr "$SOURCE/$name"; done
    for language in en fr; do
        parts=("$SOURCE"/{europarl-v7,commoncrawl,un,news-commentary-v9,giga}."$language")
        run_into "$SOURCE/train.$language" cat "${parts[@]}"
        run rm "${parts[@]}"
    done
}

tests() {
    newstest wmt13 en fr "$RAW/test"
    newstest wmt14/full en fr "$RAW/test1"
}

segmentation() {
    local name language
    for language in en fr; do
        moses_normalized $language "$SOURCE/train.$language" "$SOURCE/train.tok.$language"
        for name in test test1; do moses_normalized $language "$RAW/$name.$language" "$SOURCE/$name.tok.$language"; done
    done
    learn_bpe 40000 "$PIECES/codes" "$SOURCE"/train.tok.{en,fr}
    for language in en fr; do
        apply_bpe "$PIECES/codes" "$SOURCE/train.tok.$language" "$SOURCE/train.bpe.$language"
        for name in test test1; do
            apply_bpe "$PIECES/codes" "$SOURCE/$name.tok.$language" "$PIECES/$name.$language"
        done
    done
    run python "$STEPS/clean.py" "$SOURCE/train.bpe" "$PIECES/train" en fr --longest 250 --ratio 1.5
}

binarization() {
    binarize "$BIN" --source-lang en --target-lang fr --joined-dictionary --workers "$OMP_NUM_THREADS" \
        --trainpref "$PIECES/train" --validpref "$PIECES/test" --testpref "$PIECES/test,$PIECES/test1"
}

need fairseq-preprocess
package sacrebleu sacremoses subword_nmt
stages "$RAW" tests
stages "$SOURCE" corpus
stages "$PIECES" segmentation
stages "$BIN" binarization
