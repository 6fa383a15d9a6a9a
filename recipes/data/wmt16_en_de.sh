#!/usr/bin/env bash
# Prepares WMT16, English to German, with 32,000 joint BPE operations, the data set of Ott et al. (2018) and of fairseq's
# scaling_nmt page, for Takase & Kiyono's translation models.
#   recipes/data/wmt16_en_de.sh
# Validation: newstest2013. Test: test, test1, ..., test6 are newstest2010, 2011, ..., 2016 (2014 is test4), with the text of
# sacreBLEU (wmt14/full for 2014).
# FROM       archive (default): the set as preprocessed by Google, to which the release's page leads (the paper names no copy).
#            Its address on Google Drive is reported to be unreachable at times; the MD5 sum is torchtext's.
#            corpora: rebuilt from the same corpora in the same way: Europarl v7, Common Crawl and News Commentary v11, Moses'
#            tokenizer (sacremoses instead of Perl), pairs of 1 to 80 words; a few pairs and merges differ.
# DATA_ROOT  folder with wmt/wmt16_en_de.tar.gz, or for FROM=corpora
#            wmt/training-parallel-{europarl-v7,commoncrawl,nc-v11}.tgz, and newstest/{wmt10,wmt11,wmt12,wmt13,wmt15,
#            wmt16}.test.tgz and newstest/wmt14_full.test-full.tgz; without it they are downloaded (0.5 or 1.7 GB)
# Needs pip install '.[data]'. Writes $OUT/data/wmt16_en_de/{source,raw,pieces,bin}; with archive, raw/train is tokenized.
# Not available: the paper's high-resource set, which was filtered and back-translated by models that are not public.
source "$(dirname "$0")/tools.sh"

URL='https://drive.usercontent.google.com/download?id=0B_bZck-ksdkpM25jRUN2X2UxMm8&export=download&confirm=t'
FROM=${FROM:-archive}
SET=$OUT/data/wmt16_en_de
SOURCE=$SET/source RAW=$SET/raw PIECES=$SET/pieces BIN=$SET/bin
NAMES=([2010]=test [2011]=test1 [2012]=test2 [2013]=test3 [2014]=test4 [2015]=test5 [2016]=test6) # of each year's test set

tests() {
    local year set language
    for year in "${!NAMES[@]}"; do
        set=wmt${year#20}
        if [ "$year" = 2014 ]; then set=wmt14/full; fi
        newstest "$set" en de "$RAW/${NAMES[year]}"
    done
    for language in en de; do run cp "$RAW/${NAMES[2013]}.$language" "$RAW/valid.$language"; done
}

archive() {
    local language year name
    obtain wmt/wmt16_en_de.tar.gz "$URL" "$SOURCE/wmt16_en_de.tar.gz" 874ab6bbfe9c21ec987ed1b9347f95ec
    run tar -xzf "$SOURCE/wmt16_en_de.tar.gz" -C "$SOURCE"
    for language in en de; do
        run mv "$SOURCE/train.tok.clean.bpe.32000.$language" "$PIECES/train.$language"
        run_through "$PIECES/train.$language" "$RAW/train.$language" sed -E 's/@@( |$)//g'
        for year in "${!NAMES[@]}"; do
            name=${NAMES[year]}
            run cp "$SOURCE/newstest$year.tok.bpe.32000.$language" "$PIECES/$name.$language"
            same_length "$PIECES/$name.$language" "$RAW/$name.$language"
        done
        run cp "$PIECES/${NAMES[2013]}.$language" "$PIECES/valid.$language"
    done
}

same_length() {
    [ "$DRY_RUN" = 1 ] || [ "$(wc -l <"$1")" -eq "$(wc -l <"$2")" ] || fail "$1 and $2: must have the same number of lines"
}

corpora() {
    local name language
    for name in europarl-v7 commoncrawl news-commentary-v11; do parallel $name de "$SOURCE/$name"; done
    for language in en de; do
        run_into "$SOURCE/all.$language" cat "$SOURCE"/{europarl-v7,commoncrawl,news-commentary-v11}."$language"
        moses $language "$SOURCE/all.$language" "$SOURCE/all.tok.$language"
    done
    run python "$STEPS/clean.py" "$SOURCE/all.tok" "$SOURCE/train.tok" en de --longest 80 --along "$SOURCE/all" "$RAW/train"
    learn_bpe 32000 "$PIECES/codes" "$SOURCE"/train.tok.{en,de}
    for language in en de; do
        for name in train valid "${NAMES[@]}"; do
            if [ $name != train ]; then moses $language "$RAW/$name.$language" "$SOURCE/$name.tok.$language"; fi
            apply_bpe "$PIECES/codes" "$SOURCE/$name.tok.$language" "$PIECES/$name.$language"
        done
    done
}

binarization() {
    local tests
    tests=$(printf ",$PIECES/%s" "${NAMES[@]}")
    binarize "$BIN" --source-lang en --target-lang de --joined-dictionary --nwordssrc 32768 --nwordstgt 32768 \
        --workers "$OMP_NUM_THREADS" --trainpref "$PIECES/train" --validpref "$PIECES/valid" --testpref "${tests#,}"
}

case $FROM in archive | corpora) ;; *) fail "FROM=$FROM: must be archive or corpora" ;; esac
need fairseq-preprocess
package sacrebleu
if [ "$FROM" = corpora ]; then package sacremoses subword_nmt; fi
for other in archive corpora; do
    [ $other = "$FROM" ] || [ ! -e "$PIECES/.$other.done" ] || fail "FROM=$FROM: $SET was made with FROM=$other; remove it"
done
run mkdir -p "$SOURCE" "$RAW" "$PIECES"
stages "$RAW" tests
stages "$PIECES" "$FROM"
stages "$BIN" binarization
