#!/usr/bin/env bash
# Multi30k, German to English: architectures compared at the same training budget.
#   PAIR="en fr" TESTS="test_2016_flickr test_2017_flickr test_2017_mscoco test_2018_flickr" recipes/multi30k/train.sh ROW
exec "$(dirname "$0")/../table" "$0" "$@"
