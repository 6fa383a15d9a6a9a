"""DeiT with recursion: SReT's first experiments, before its pyramid.

Paper: Sliced Recursive Transformer (arXiv:2111.05297), Table 1, section 5.2, Figure 4.

The published code has none of these models. Assumed here: DeiT-Tiny's block and initialisation; NLL and LRC as in SReT,
with an NLL of the stream's width; `stem="conv"` is SReT's stem followed by a 2x2 convolution, which gives the same
number of tokens as patches; mean pooling (`class_token=False, global_pool="avg"`) follows the final norm.
"""

from typing import Any

from timm.models import generate_default_cfgs, register_model

from timm_plugin._create import SRET_URL, create, sret_cfg
from timm_plugin._vit import LoopedVisionTransformer

default_cfgs = generate_default_cfgs(
    {"recursive_deit_tiny": sret_cfg(first_conv="patch_embed.proj", origin_url=SRET_URL)}
)


@register_model
def recursive_deit_tiny(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """DeiT-Tiny, each block run twice, of Table 1: 5,717,416 parameters whatever `loops` (1 to 4 in the paper).

    Section 5.2 compares internal loops with external ones (`loop_order="external"`) on `depth=6`: 3,048,232 parameters,
    with `nll=True` 3,942,184 (12 projections) and 3,197,224 (2).
    """
    model_args = dict(embed_dim=192, depth=12, num_heads=3, pos_embed="learn", init="deit", loops=2)
    return create(LoopedVisionTransformer, "recursive_deit_tiny", pretrained, model_args, **kwargs)
