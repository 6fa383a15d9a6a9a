# Functions for the scripts that prepare data sets; source it instead of ../common.sh, which it includes. Further settings:
#   DATA_ROOT  folder of the source files, under the names listed in each script; without it they are downloaded
#   VERIFY     0 accepts files whose checksum or size differs from the published one, such as part of a set (default 1)
# A set is written to $OUT/data/NAME. Finished stages are skipped, and an interrupted download is resumed.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

[ $# = 0 ] || fail "$1: takes no arguments; settings come first, such as DATA_ROOT=FOLDER $0"
VERIFY=${VERIFY:-1}
STEPS=$ROOT/recipes/data

# verify FILE CHECKSUM: fail unless FILE has the published MD5 (32 digits) or SHA-256 (64 digits).
verify() {
    local tool=md5sum found
    if [ "$DRY_RUN" = 1 ] || [ "$VERIFY" != 1 ]; then return; fi
    if [ ${#2} -eq 64 ]; then tool=sha256sum; fi
    need "$tool"
    found=$("$tool" <"$1")
    [ "${found%% *}" = "$2" ] ||
        fail "$1: $tool ${found%% *}, but the published file has $2; remove it, or set VERIFY=0 to accept it"
}

# download URL FILE NAME [CHECKSUM]: download FILE, which is created only when complete; NAME is its path in DATA_ROOT.
download() {
    local transfer=(curl --fail --location --retry 3 --output "$2.part" "$1") status=0 answer=''
    if [ "$DRY_RUN" != 1 ] && [ -e "$2" ]; then return; fi
    need curl
    if [ "$DRY_RUN" = 1 ]; then
        run "${transfer[@]}" --continue-at -
    else
        answer=$("${transfer[@]}" --continue-at - --write-out '%{http_code}') || status=$?
    fi
    # Some servers send no rest of a file, others say that there is none: fetch all of it again.
    if [ $status = 33 ] || [ "$answer" = 416 ]; then
        status=0
        "${transfer[@]}" || status=$?
    fi
    [ $status = 0 ] ||
        fail "$1: not reached; without a network, put the file in a folder, as $3, and set DATA_ROOT (see the head of $0)"
    if [ -n "${4:-}" ]; then verify "$2.part" "$4"; fi
    run mv "$2.part" "$2"
}

# obtain NAME URL FILE [CHECKSUM]: link FILE to DATA_ROOT/NAME, or download it if DATA_ROOT is not set.
obtain() {
    if [ -z "${DATA_ROOT:-}" ]; then
        download "$2" "$3" "$1" "${4:-}"
        return
    fi
    [ "$DRY_RUN" = 1 ] || [ -f "$DATA_ROOT/$1" ] ||
        fail "DATA_ROOT=$DATA_ROOT: holds no $1; get it from $2, or unset DATA_ROOT to download it"
    if [ -n "${4:-}" ]; then verify "$DATA_ROOT/$1" "$4"; fi
    run ln -sfn "$(realpath -m "$DATA_ROOT/$1")" "$3"
}

# expect PATH COUNT THINGS COMMAND...: log the number that the command prints, and fail unless it is the published COUNT.
expect() {
    local found
    if [ "$DRY_RUN" = 1 ]; then return; fi
    found=$("${@:4}")
    log "${1##*/}: $found $3"
    [ "$VERIFY" != 1 ] || [ "$found" -eq "$2" ] || fail "$1: $found $3, but the set has $2 (VERIFY=0 accepts it)"
}

# of_file FILE COMMAND..., files FOLDER PATTERN: for expect, a command on a file, and the number of files below a folder.
of_file() { "${@:2}" <"$1"; }
files() { find "$1" -name "$2" | wc -l; }

# lines FILE COUNT, images FOLDER COUNT: expect this many.
lines() { expect "$1" "$2" lines of_file "$1" wc -l; }
images() { expect "$1" "$2" images files "$1" '*.[jJ][pP]*[gG]'; }

# package NAME...: fail unless these Python packages are installed.
package() {
    local name
    if [ "$DRY_RUN" = 1 ]; then return; fi
    for name in "$@"; do
        python -c 'import sys, importlib.util as known; sys.exit(known.find_spec(sys.argv[1]) is None)' "$name" ||
            fail "$name: not installed; install the extra that prepares data (pip install '.[data]')"
    done
}

# run_through INPUT OUTPUT COMMAND...: as run_into, with the standard input from INPUT.
run_through() {
    if [ "$DRY_RUN" = 1 ]; then
        printf '%s < %q > %q\n' "$(quoted "${@:3}")" "$1" "$2"
    else
        run_into "$2" "${@:3}" <"$1"
    fi
}

# sacremoses_through LANGUAGE INPUT OUTPUT COMMANDS: let sacremoses, which keeps all that it reads in memory, map a million lines at
# a time. (A script may have a function named split.)
sacremoses_through() {
    run_through "$2" "$3" command split --lines 1000000 --filter "sacremoses -q -l $1 -j $OMP_NUM_THREADS $4"
}

# moses LANGUAGE INPUT OUTPUT: Moses' tokenizer, which also escapes the special characters of its decoder.
moses() { sacremoses_through "$@" tokenize; }

# moses_normalized LANGUAGE INPUT OUTPUT: normalize punctuation and numbers, then tokenize and split at hyphens.
moses_normalized() {
    sacremoses_through "$@" \
        "normalize --normalize-quote-commas --normalize-numbers --remove-control-chars tokenize --aggressive-dash-splits"
}

# learn_bpe SYMBOLS CODES FILE...: learn joint BPE codes from several files.
learn_bpe() {
    run_into "$2.text" cat "${@:3}"
    run_through "$2.text" "$2" subword-nmt learn-bpe -s "$1"
    run rm "$2.text"
}

# apply_bpe CODES INPUT OUTPUT
apply_bpe() { run_through "$2" "$3" subword-nmt apply-bpe -c "$1"; }

# binarize FOLDER [flags]: run fairseq-preprocess into FOLDER, with its log in FOLDER.log. It does not overwrite a
# dictionary, so the leftovers of an interrupted call are removed first.
binarize() {
    run rm -rf "$1"
    run_logged "$1.log" fairseq-preprocess --user-dir "$ROOT/fairseq_plugin" --destdir "$@"
}

# binarize_sets FOLDER FILES [flags]: the same for FILES, a pattern in which * stands for train, valid and test.
binarize_sets() {
    binarize "$1" --trainpref "${2/\*/train}" --validpref "${2/\*/valid}" --testpref "${2/\*/test}" "${@:3}"
}

# newstest SET SOURCE TARGET PREFIX: write sacreBLEU's test set SET as plain text to PREFIX.SOURCE and PREFIX.TARGET. Its
# archive is $DATA_ROOT/newstest/SET.FILE, with _ for / in SET; addresses and MD5 sums are sacreBLEU's.
newstest() {
    local archive folder=$OUT/data/sacrebleu/$1/raw url sum
    NEWSTESTS=${NEWSTESTS:-$(python -c 'from sacrebleu.dataset import DATASETS
for name, entry in DATASETS.items(): print(name, entry.data[0], *(entry.md5 or [])[:1])')}
    read -r _ url sum < <(grep "^$1 " <<<"$NEWSTESTS") || fail "$1: not a test set of the installed sacreBLEU"
    archive=${1//\//_}.${url##*/}
    run mkdir -p "$folder"
    obtain "newstest/$archive" "$url" "$folder/$archive" "$sum"
    run tar -xzf "$folder/$archive" -C "$folder"
    run_into "$4.both" env SACREBLEU="$OUT/data/sacrebleu" sacrebleu -t "$1" -l "$2-$3" --echo src ref
    run_through "$4.both" "$4.$2" cut -f 1
    run_through "$4.both" "$4.$3" cut -f 2
    run rm "$4.both"
}

# parallel CORPUS LANGUAGE OUTPUT: write one of WMT's parallel corpora of de or fr with English to OUTPUT.LANGUAGE and
# OUTPUT.en. Its archive is in $DATA_ROOT/wmt. statmt.org publishes no checksums; the SHA-256 sums are from TensorFlow
# Datasets, which has none for the two corpora that exist only for French.
parallel() {
    local home=https://www.statmt.org url sum= member packed= archive language
    case $1 in
    europarl-v7)
        url=$home/wmt13/training-parallel-europarl-v7.tgz member=training/europarl-v7.$2-en
        sum=0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7
        ;;
    commoncrawl)
        url=$home/wmt13/training-parallel-commoncrawl.tgz member=commoncrawl.$2-en
        sum=c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5
        ;;
    news-commentary-v9)
        url=$home/wmt14/training-parallel-nc-v9.tgz member=training/news-commentary-v9.$2-en
        sum=cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485
        ;;
    news-commentary-v11)
        url=https://data.statmt.org/wmt16/translation-task/training-parallel-nc-v11.tgz
        member=training-parallel-nc-v11/news-commentary-v11.$2-en
        sum=cfe8ab047e05043476e498ee765c98e939c7b7d6d294e856344c84476b619d6a
        ;;
    un) url=$home/wmt13/training-parallel-un.tgz member=un/undoc.2000.$2-en ;;
    giga) url=$home/wmt10/training-giga-fren.tar member=giga-fren.release2.fixed packed=.gz ;;
    esac
    archive=$OUT/data/wmt/${url##*/}
    run mkdir -p "$OUT/data/wmt"
    obtain "wmt/${url##*/}" "$url" "$archive" "$sum"
    for language in "$2" en; do
        run_into "$3.raw$packed" tar -xOf "$archive" "$member.$language$packed"
        if [ -n "$packed" ]; then run gunzip --force "$3.raw$packed"; fi
        run_through "$3.raw" "$3.$language" tr '\r' ' ' # some tools treat it as the end of a line
    done
    run rm "$3.raw"
}
