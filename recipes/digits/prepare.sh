#!/usr/bin/env bash
# scikit-learn's handwritten digits as folders of PNG files, in $OUT/digits/images; what is done already is skipped.
source "$(dirname "$0")/../common.sh"

DATA=$OUT/digits/images

images() {
    run python "$ROOT/recipes/digits/data.py" "$DATA"
}

if [ "$DRY_RUN" != 1 ]; then mkdir -p "$DATA"; fi
stage "$DATA" images
