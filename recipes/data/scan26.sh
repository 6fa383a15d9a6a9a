#!/usr/bin/env bash
# Prepares SCAN, split by the length of the output (Newman et al., 2020): commands to sequences of actions.
#   recipes/data/scan26.sh
# Of the 18,286 commands with at most 26 actions, every tenth is the set valid, which no training sees; the other nine are
# the set train. The 2,624 commands with more actions are the set test.
# DATA_ROOT  folder with scan/tasks.txt.gz; without it tasks.txt is downloaded (3 MB)
# Writes $OUT/data/scan26/{raw,bin}
source "$(dirname "$0")/tools.sh"

URL=https://raw.githubusercontent.com/brendenlake/SCAN/master/tasks.txt
SET=$OUT/data/scan26
RAW=$SET/raw BIN=$SET/bin

corpus() {
    if [ -n "${DATA_ROOT:-}" ]; then
        obtain scan/tasks.txt.gz "$URL" "$RAW/tasks.txt.gz"
        run_into "$RAW/tasks.txt" gzip -dc "$RAW/tasks.txt.gz"
    else
        obtain scan/tasks.txt "$URL" "$RAW/tasks.txt"
    fi
    verify "$RAW/tasks.txt" d824c7d9e9149ba497e25f701981dac79954e04bf670d22e5c209f076ac6c89f
    run awk -v folder="$RAW" -F ' OUT: ' '{
        set = split($2, actions, " ") > 26 ? "test" : ++short % 10 ? "train" : "valid"
        print substr($1, 5) > (folder "/" set ".command")
        print $2 > (folder "/" set ".action")
    }' "$RAW/tasks.txt"
    lines "$RAW/train.command" 16458
    lines "$RAW/valid.command" 1828
    lines "$RAW/test.command" 2624
}

binarization() {
    binarize_sets "$BIN" "$RAW/*" --source-lang command --target-lang action --workers 1
}

need fairseq-preprocess
stages "$RAW" corpus
stages "$BIN" binarization
