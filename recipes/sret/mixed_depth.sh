#!/usr/bin/env bash
# SReT, section 5.7 and Figure 9: models with 108 and 1,000 layers, and training at two depths at once.
exec "$(dirname "$0")/../table" "$0" "$@"
