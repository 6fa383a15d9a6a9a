#!/usr/bin/env bash
# Multi30k, German to English: one architecture beside another, at one budget.
#   PAIR="en fr" TESTS="test_2016_flickr test_2017_flickr test_2017_mscoco test_2018_flickr" recipes/multi30k/train.sh ROW
exec "$(dirname "$0")/../table" "$0" "$@"
