#!/usr/bin/env bash
# SReT, Table 4: operations of one image, and images a second on the device at hand; nothing is trained.
exec "$(dirname "$0")/../table" "$0" "$@"
