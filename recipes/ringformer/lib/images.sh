# What RingFormer's image tables have in common; sourced by their scripts.
#
# Scale paper has the settings of the published code: Adam without weight decay, linear warm-up and half a cosine to 0,
# norms clipped at 1, dropout 0.1 after the embedding and in the MLP, no label smoothing, images of 256 pixels cropped
# at random to 224 and flipped; seed 42 there, SEED here.
SMALL_DIVISOR=4
PAPER_KWARGS=(pos_drop_rate=0.1 mlp_drop_rate=0.1)
PAPER_FLAGS=(--opt adam --weight-decay 0 --clip-grad 1 --smoothing 0 --resize 256 --color-jitter 0)
