"""SReT: a pyramid of stages whose blocks run repeatedly, with sliced attention.

Paper: Sliced Recursive Transformer (arXiv:2111.05297), Table 5.

Differs from the published code: inference is deterministic (permutations are stored in the checkpoint, see
`recurrence.slicing`); blocks may run any number of times; drop path rates follow the depth
(`drop_path_placement="published"` uses the published rates); other image sizes are supported by resampling positions.

The class token and the patches of Table 3 were not released. Assumed here: PiT's patches, a class token without a
position, and between stages the same convolution for the class token, as a map of one place. This gives the paper's
parameter counts in all rows.

For SReT-108 (section 5.7, Figure 9) the paper gives no shapes. Assumed here: a layer is a pass, as in Table 1; TL's
ratios, slices and distribution of blocks over the stages, and the largest width within the abstract's "13~15M"
parameters for "more than 100 or even 1000" layers. At mixed depth, the shallow branch runs each stored block once, with
the projection of its first pass, and shares stem, pooling, norm and classifier with the deep branch. Both are trained
on the labels with equal weight; inference uses the deep branch.

Not in the paper: SReT-Nano, a model for CIFAR-10 whose weights are part of this package, see
`weights/sret_nano.cifar10.md`.
"""

from pathlib import Path

from timm_plugin._create import SRET_URL, register_family, sret_cfg
from timm_plugin._sret_config import SReTConfig

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
GLOBAL = ((1, 1),) * 3  # no slices in either run of a block, in any of the three stages
T = dict(embed_dim=64, depths=(2, 5, 3), num_heads=(2, 4, 8), mlp_ratio=3.6, nll_ratio=1.0)
TL = dict(T, mlp_ratio=4.0)
S = dict(embed_dim=126, depths=(2, 5, 3), num_heads=(3, 6, 12), mlp_ratio=3.0, nll_ratio=2.0)
# The paper gives ExT 4.0M parameters and 0.7 GMAC but no shape. Of the pyramids with a stem of this kind, two passes
# per block, TL's ratios and these slices, width 48 with 1, 5 and 5 blocks is the nearest to both.
EXT = dict(TL, embed_dim=48, depths=(1, 5, 5))
NANO = dict(embed_dim=64, depths=(1, 1), num_heads=(2, 4), groups=((1,), (1,)), loops=4, mlp_ratio=3.5, nll_ratio=0.0)
DEEP = dict(TL, embed_dim=48, depths=(11, 27, 16))  # with `embed_dim=16, depths=(100, 250, 150)`, 1,000 passes

register_family(
    __name__,
    SReTConfig,
    sret_cfg(pool_size=(7, 7), first_conv="patch_embed.conv1", origin_url=SRET_URL),
    {
        "sret_ext": ("SReT-ExT of Table 5, whose shape is found, not published", EXT),
        "sret_t": ("SReT-T of Table 5", T),
        "sret_tl": ("SReT-TL of Table 5", TL),
        "sret_s": ("SReT-S of Table 5", S),
        "sret_t_global": ("SReT-T* of Table 5, without slices", dict(T, groups=GLOBAL)),
        "sret_tl_global": ("SReT-TL* of Table 5, without slices", dict(TL, groups=GLOBAL)),
        "sret_s_global": ("SReT-S* of Table 5, without slices", dict(S, groups=GLOBAL)),
        "sret_nano": ("SReT for CIFAR-10, with 10 classes", NANO),
        "sret_108": ("SReT-108 of Figure 9", DEEP),
        "sret_108_mixed": ("SReT-108 trained at mixed depth, beside its 54 first passes", dict(DEEP, mixed_depth=True)),
    },
    shipped={
        "sret_nano.cifar10": dict(
            file=str(Path(__file__).parent / "weights" / "sret_nano.cifar10.safetensors"),
            license="mit",
            input_size=(3, 64, 64),
            pool_size=(4, 4),
            crop_pct=1.0,
            num_classes=10,
            label_names=CIFAR10,
        ),
    },
)
