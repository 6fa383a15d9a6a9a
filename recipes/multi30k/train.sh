#!/usr/bin/env bash
# Multi30k, German to English: one architecture beside another, at one budget.
#
#   recipes/multi30k/train.sh ROW|all|list [flags of fairseq-train]
#   PAIR="en fr" TESTS="test_2016_flickr test_2017_flickr test_2017_mscoco test_2018_flickr" recipes/multi30k/train.sh ROW
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
