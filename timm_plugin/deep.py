"""Models of 108 layers, some trained at two depths at once (`mixed_depth`).

Paper: Sliced Recursive Transformer (arXiv:2111.05297), section 5.7 and Figure 9.

The paper gives no shapes, and the published code has none of these models. Assumed here: a layer is a pass, as in Table
1 and in DeiT-108, which is DeiT-Tiny with 108 unshared blocks. SReT-108 has TL's ratios, slices and distribution of
blocks over the stages, and the largest width within the abstract's "13~15M" parameters for "more than 100 or even 1000"
layers. The shallow branch runs each stored block once, with the projection of its first pass, and shares stem, pooling,
norm and classifier with the deep branch. Both are trained on the labels with equal weight; inference uses the deep
branch.

Not in the paper: a mixed-depth DeiT, with 54 stored blocks that run twice.
"""

from timm_plugin._create import register_family, sret_cfg
from timm_plugin._sret_config import SReTConfig
from timm_plugin.recursive_deit import DEIT_TINY, RecursiveDeiTConfig

SRET = dict(embed_dim=48, depths=(11, 27, 16))  # with `embed_dim=16, depths=(100, 250, 150)`, 1,000 passes

register_family(
    __name__,
    SReTConfig,
    sret_cfg(pool_size=(7, 7), first_conv="patch_embed.conv1"),
    {
        "sret_108": ("SReT-108 of Figure 9", SRET),
        "sret_108_mixed": ("SReT-108 trained at mixed depth, beside its 54 first passes", dict(SRET, mixed_depth=True)),
    },
)
register_family(
    __name__,
    RecursiveDeiTConfig,
    sret_cfg(),
    {
        "deit_108": ("DeiT-108 of Figure 9", dict(DEIT_TINY, depth=108)),
        "deit_108_mixed": (
            "DeiT-108 with 54 stored blocks, run twice, trained at mixed depth",
            dict(DEIT_TINY, depth=54, loops=2, mixed_depth=True),
        ),
    },
)
