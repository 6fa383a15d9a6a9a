#!/usr/bin/env bash
# Writes scikit-learn's handwritten digits as folders of PNG files to $OUT/digits/images; finished stages are skipped.
source "$(dirname "$0")/../data/tools.sh"

DATA=$OUT/digits/images

images() {
    run python "$ROOT/recipes/digits/data.py" "$DATA"
}

stages "$DATA" images
