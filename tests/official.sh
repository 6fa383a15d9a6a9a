#!/usr/bin/env bash
# Run the tests on the official fairseq 0.12.2 under Python 3.10, in an environment of its own.
#
# Usage: tests/official.sh [pytest arguments]
#   PYTHON310      the interpreter (default python3.10)
#   VENV_OFFICIAL  the environment, made where it is missing (default .venv-official)
#   SETUP_ONLY=1   make the environment and run nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON310="${PYTHON310:-python3.10}"
VENV_OFFICIAL="$(realpath -m "${VENV_OFFICIAL:-.venv-official}")"
STAMP="$VENV_OFFICIAL/.installed"

install() {
  "$VENV_OFFICIAL/bin/python" -m pip install "$@"
}

if [[ ! -e "$STAMP" || tests/official.sh -nt "$STAMP" ]]; then
  version="$("$PYTHON310" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" || version=none
  if [[ "$version" != 3.10 ]]; then
    echo "PYTHON310=$PYTHON310: must be a Python 3.10 (found: $version); fairseq 0.12.2 does not import on 3.11" >&2
    exit 1
  fi
  "$PYTHON310" -m venv "$VENV_OFFICIAL"
  install "pip<24.1" # later ones reject the metadata of omegaconf 2.0.6
  install torch==2.13.0 "numpy<2" cython wheel
  install --no-deps fairseq==0.12.2 # with build isolation: beside torch it would compile sources that it does not ship
  install "hydra-core>=1.0.7,<1.1" "omegaconf<2.1" cffi regex "sacrebleu>=2" tqdm bitarray
  install sacremoses sentencepiece tensorboardX --editable ".[timm,speech,demo,dev]" torch==2.13.0 "numpy<2"
  touch "$STAMP"
fi

[[ -n "${SETUP_ONLY:-}" ]] && exit 0
export PATH="$VENV_OFFICIAL/bin:$PATH"
exec python -m pytest "$@"
