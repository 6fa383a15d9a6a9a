#!/usr/bin/env bash
# Prepares IWSLT 2014, German to English, as fairseq does: Moses' tokenizer, lower case, pairs of 1 to 175 words with a length
# ratio of at most 1.5, every 23rd pair for validation, five development and test sets together for the test, 10,000 joint
# BPE operations.
#   recipes/data/iwslt14_de_en.sh
# Differs from fairseq's script: sacremoses replaces Moses' Perl scripts, so a few of the 160,239 training pairs may differ;
# and both languages have one dictionary, which shared embeddings need. The publisher of the archive gives no checksum. raw/
# is lowercased too, as translations are.
# DATA_ROOT  folder with iwslt14/de-en.tgz; without it the file is downloaded (19 MB)
# Needs pip install '.[data]'. Writes $OUT/data/iwslt14_de_en/{source,raw,pieces,bin}
source "$(dirname "$0")/tools.sh"

URL=http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz
SET=$OUT/data/iwslt14_de_en
SOURCE=$SET/source RAW=$SET/raw PIECES=$SET/pieces BIN=$SET/bin

corpus() {
    local language
    obtain iwslt14/de-en.tgz "$URL" "$SOURCE/de-en.tgz"
    run tar -xzf "$SOURCE/de-en.tgz" -C "$SOURCE"
    run python "$STEPS/iwslt.py" "$SOURCE/de-en" "$SOURCE"
    for language in de en; do lines "$SOURCE/test.$language" 6750; done
}

tokens() {
    local name language
    for name in train test; do
        for language in de en; do moses $language "$SOURCE/$name.$language" "$SOURCE/$name.tok.$language"; done
    done
    run python "$STEPS/clean.py" "$SOURCE/train.tok" "$SOURCE/clean.tok" de en --longest 175 --ratio 1.5 \
        --along "$SOURCE/train" "$SOURCE/clean"
}

# Splits the text and its tokens in the same way, so that they stay parallel.
split() {
    local language
    for language in de en; do
        lowercase "$SOURCE/clean.$language" "$SOURCE/lower.$language"
        run_through "$SOURCE/lower.$language" "$RAW/train.$language" awk 'NR % 23'
        run_through "$SOURCE/lower.$language" "$RAW/valid.$language" awk 'NR % 23 == 0'
        lowercase "$SOURCE/test.$language" "$RAW/test.$language"
        lowercase "$SOURCE/clean.tok.$language" "$SOURCE/lower.tok.$language"
        run_through "$SOURCE/lower.tok.$language" "$SOURCE/train.lower.$language" awk 'NR % 23'
        run_through "$SOURCE/lower.tok.$language" "$SOURCE/valid.lower.$language" awk 'NR % 23 == 0'
        lowercase "$SOURCE/test.tok.$language" "$SOURCE/test.lower.$language"
    done
}

lowercase() {
    run_through "$1" "$2" python -X utf8 -c 'import sys; sys.stdout.writelines(line.lower() for line in sys.stdin)'
}

segmentation() {
    local name language
    learn_bpe 10000 "$PIECES/codes" "$SOURCE"/train.lower.{de,en}
    for name in train valid test; do
        for language in de en; do
            apply_bpe "$PIECES/codes" "$SOURCE/$name.lower.$language" "$PIECES/$name.$language"
        done
    done
}

binarization() {
    binarize_sets "$BIN" "$PIECES/*" --source-lang de --target-lang en --joined-dictionary --workers "$OMP_NUM_THREADS"
}

need fairseq-preprocess
package sacremoses subword_nmt
stages "$SOURCE" corpus tokens
stages "$RAW" split
stages "$PIECES" segmentation
stages "$BIN" binarization
