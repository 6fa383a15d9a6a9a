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

from functools import partial
from typing import Any

from timm.models import generate_default_cfgs, register_model

from timm_plugin._create import create, sret_cfg
from timm_plugin._sret import SReT
from timm_plugin._vit import LoopedVisionTransformer

_sret_cfg = partial(sret_cfg, pool_size=(7, 7), first_conv="patch_embed.conv1")
_deit_cfg = partial(sret_cfg, first_conv="patch_embed.proj")

default_cfgs = generate_default_cfgs(
    {
        "sret_108": _sret_cfg(),
        "sret_108_mixed": _sret_cfg(),
        "deit_108": _deit_cfg(),
        "deit_108_mixed": _deit_cfg(),
    }
)


@register_model
def sret_108(pretrained: bool = False, **kwargs: Any) -> SReT:
    """SReT-108 of Figure 9: width 48, with 11, 27 and 16 blocks of two passes. 14,220,472 parameters.

    With `embed_dim=16, depths=(100, 250, 150)` it has 1,000 passes and 14,825,624 parameters.
    """
    model_args = dict(embed_dim=48, depths=(11, 27, 16))
    return create(SReT, "sret_108", pretrained, model_args, **kwargs)


@register_model
def sret_108_mixed(pretrained: bool = False, **kwargs: Any) -> SReT:
    """SReT-108 trained at mixed depth, beside its 54 first passes. 14,220,472 parameters."""
    model_args = dict(embed_dim=48, depths=(11, 27, 16), mixed_depth=True)
    return create(SReT, "sret_108_mixed", pretrained, model_args, **kwargs)


@register_model
def deit_108(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """DeiT-108 of Figure 9: DeiT-Tiny with 108 unshared blocks. 48,424,360 parameters."""
    model_args = dict(embed_dim=192, depth=108, num_heads=3, pos_embed="learn", init="deit")
    return create(LoopedVisionTransformer, "deit_108", pretrained, model_args, **kwargs)


@register_model
def deit_108_mixed(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """DeiT-108 with 54 stored blocks, run twice, trained at mixed depth. 24,401,704 parameters."""
    model_args = dict(embed_dim=192, depth=54, num_heads=3, pos_embed="learn", init="deit", loops=2, mixed_depth=True)
    return create(LoopedVisionTransformer, "deit_108_mixed", pretrained, model_args, **kwargs)
