#!/usr/bin/env bash
# Runs rows of a table. Each table has a link to this script, such as ringformer/table1.sh; --help explains it.
exec "$(dirname "$0")/../records/run.py" "$0" "$@"
