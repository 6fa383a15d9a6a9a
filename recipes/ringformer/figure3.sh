#!/usr/bin/env bash
# RingFormer, Figure 3: mean attention distance of each head in each layer, over 500 validation images of ImageNet-small.
# The upper row shows Table 2's ViT, UiT^s, OWF and RingFormer^s, the lower row Table 3's ViT, OWF, UiT^s and RingFormer^s.
#   recipes/ringformer/figure3.sh [options of recipes/figures/attention_distance.py]
source "$(dirname "$0")/../common.sh"

runs attention_distance.py ringformer/table2 last.pth.tar vit uit_wide owf ringformer_wide
upper=("${RUNS[@]/#/Table 2, }")
runs attention_distance.py ringformer/table3 last.pth.tar vit owf uit_wide ringformer_wide
IMAGES=()
if [ "$SCALE" = paper ]; then IMAGES=(--data "$OUT/data/imagenet_small"); fi
run python "$ROOT/recipes/figures/attention_distance.py" "${upper[@]}" "${RUNS[@]/#/Table 3, }" --samples 500 \
    "${IMAGES[@]}" --output "$OUT/ringformer/figure3-$SCALE.svg" "$@"
