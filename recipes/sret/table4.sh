#!/usr/bin/env bash
# SReT, Table 4: operations per image, and images per second on this machine; nothing is trained.
exec "$(dirname "$0")/../table" "$0" "$@"
