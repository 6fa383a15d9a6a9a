#!/usr/bin/env bash
# SReT, section 5.7 and Figure 9: 108 and 1,000 layers, and training at two depths at once.
#
#   recipes/sret/mixed_depth.sh ROW|all|list [flags of train_image.py]
#
# Rows and settings are in tables.toml beside this file; recipes/records/run.py tells what SCALE and the others mean.
exec "$(dirname "$0")/../table" "$0" "$@"
