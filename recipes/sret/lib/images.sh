# What SReT's image tables have in common; sourced by their scripts.
#
# The paper refers to DeiT's recipe for training (arXiv 2012.12877), and the appendix with its own values is not at
# hand. Scale paper is that recipe: 300 epochs of 1,024 images an update, AdamW, rate 5e-4 x batch / 512 after 5 epochs
# of warm-up, down to 1e-5, weight decay 0.05, RandAugment, Mixup, CutMix, random erasing, label smoothing, drop path
# 0.1, and each image three times in a batch of all processes (timm has that for several processes alone, so with one it
# is left out). Not here: DeiT's average of the weights, which it keeps but does not report.
PAPER_DATA=imagenet PAPER_BATCH=1024
PAPER_KWARGS=(drop_path_rate=0.1)
PAPER_FLAGS=(--opt adamw --lr 1e-3 --min-lr 1e-5 --weight-decay 0.05 --epochs 300 --warmup-epochs 5
    --aa rand-m9-mstd0.5-inc1 --mixup 0.8 --cutmix 1 --reprob 0.25 --smoothing 0.1)
if [ $((GPUS * NODES)) -gt 1 ]; then PAPER_FLAGS+=(--aug-repeats 3); fi

# image, with drop path where the published code has it.
pyramid() {
    PAPER_KWARGS+=(drop_path_placement=published)
    image "$@"
}
