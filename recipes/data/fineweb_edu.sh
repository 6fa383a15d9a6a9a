#!/usr/bin/env bash
# Prepares 500M training tokens of deduplicated FineWeb-Edu for Intra-Layer Recurrence's language models.
#   recipes/data/fineweb_edu.sh
# The documents are EleutherAI/fineweb-edu-dedup-10b on the Hugging Face hub, the set named in the published settings, in its
# order; which of its documents the authors used is not known.
# PIECES     1024 (default): for the small models, the authors' own vocabulary, byte-level BPE; 25M test tokens
#            32000: for the large models, LLaMA's vocabulary (from TinyLlama-1.1B-Chat-v1.0, which the authors used); 50M test
#            tokens
# TOKENS     training tokens (default 500000000). The test set has a twentieth of them (1024) or a tenth (32000), the
#            validation set a tenth of the test set. The authors' validation set, which the paper reports, is the test set here
# DATA_ROOT  folder with fineweb_edu/, parquet or json-lines files with one document per row in the column `text`, and with
#            fineweb_edu_1024/{vocab.json,merges.txt} or fineweb_edu_32000/tokenizer.json; without it everything is downloaded
#            (about 2 GB of the set, again from the start after an interruption). The set has no checksums.
# Needs pip install '.[data]'. Writes $OUT/data/{fineweb_edu,fineweb_edu_32000}/{source,raw,bin}; raw/*.pieces has one document
# per line, as token numbers. bin/dict.txt is padded to 1,024 or 32,000 entries.
source "$(dirname "$0")/tools.sh"

PIECES=${PIECES:-1024}
TOKENS=${TOKENS:-500000000}
HUB=EleutherAI/fineweb-edu-dedup-10b
AUTHORS=https://raw.githubusercontent.com/ant-8/Layer-Recurrent-Transformers/e3bfeb0f8d60a18b20b90b2d670b008abc90f596
declare -A SUMS=( # of the files at that commit, where they are the same as in the first commit
    [vocab.json]=6f4b6b6e2dceecd7f5c3a08f537fdd970d76995e774f4e05a1c7ea6cf2c9164e
    [merges.txt]=e5b6bfe7f3706e5f70d61b3ddd507bf67c5a7644f7831d43fd79580b71209d49
)
LLAMA=https://huggingface.co/TinyLlama/TinyLlama-1.1B-Chat-v1.0/resolve/main/tokenizer.json
[[ $TOKENS =~ ^[1-9][0-9]*$ ]] || fail "TOKENS=$TOKENS: must be a whole number of at least 1"
case $PIECES in
1024) SET=$OUT/data/fineweb_edu TEST=$((TOKENS / 20)) ;;
32000) SET=$OUT/data/fineweb_edu_32000 TEST=$((TOKENS / 10)) ;;
*) fail "PIECES=$PIECES: must be 1024 or 32000" ;;
esac
SOURCE=$SET/source RAW=$SET/raw BIN=$SET/bin

tokenizer() {
    local file
    if [ "$PIECES" = 32000 ]; then
        obtain fineweb_edu_32000/tokenizer.json "$LLAMA" "$SOURCE/tokenizer.json"
        return
    fi
    for file in vocab.json merges.txt; do
        obtain "fineweb_edu_1024/$file" "$AUTHORS/fineweb_gpt2_tokenizer_1024/$file" "$SOURCE/$file" "${SUMS[$file]}"
    done
}

documents() {
    local source=$HUB
    if [ -n "${DATA_ROOT:-}" ]; then
        source=$DATA_ROOT/fineweb_edu
        [ "$DRY_RUN" = 1 ] || [ -d "$source" ] || fail "DATA_ROOT=$DATA_ROOT: holds no folder fineweb_edu"
    fi
    run python "$STEPS/documents.py" "$source" "$SOURCE" "$RAW" --train "$TOKENS" --valid $((TEST / 10)) --test $TEST ||
        fail "$source: could not be read, for the reason above; without a network, put the files of" \
            "https://huggingface.co/datasets/$HUB into a folder fineweb_edu and set DATA_ROOT to its parent folder (see the head of $0)"
}

binarization() {
    binarize_sets "$BIN" "$RAW/*.pieces" --only-source --padding-factor "$PIECES" --workers "$OMP_NUM_THREADS"
}

need fairseq-preprocess
package tokenizers datasets
stages "$SOURCE" tokenizer
if [ "$TOKENS" != 500000000 ]; then FLAGS=("TOKENS=$TOKENS"); fi # so that no other set is taken for that of the tables
stages "$RAW" documents
stages "$BIN" binarization
