#!/usr/bin/env bash
# SReT, Table 4: operations of one image, and images a second on the device at hand; nothing is trained.
#
#   recipes/sret/table4.sh ROW|all|list [--throughput IMAGES]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
