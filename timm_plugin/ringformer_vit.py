"""RingFormer-ViT.

Paper: RingFormer (arXiv:2502.13181), section 4.1, appendix A.1, Tables 2 and 3; its baselines are in
:mod:`timm_plugin.uit`, :mod:`timm_plugin.owf_vit` and :mod:`timm_plugin.plain_vit`. The blocks are pre-norm:
projections read the normalised tokens, and level signals read the stream before the norm.

Differs from the paper: several blocks may be stored, and run in any `order`. Equations 6 and 7 show no norm; where it
stands is the code's. The paper follows the original ViT, whose positions are learned; here, as in the code, they are
fixed sines, which the printed sizes require.
Differs from the published code: the two factors of a level signal are never multiplied out; other image sizes are
supported by resampling tables.
Differs from timm: `proj_drop_rate` only applies to attention. The published setting is `pos_drop_rate=0.1,
mlp_drop_rate=0.1`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from timm.models import generate_default_cfgs, register_model
from torch import nn

from recurrence.loop import Loop
from recurrence.papers.ringformer import Signals, ringformer
from timm_plugin._config import option
from timm_plugin._create import image_cfg
from timm_plugin._vit import LoopedVisionTransformer, ViTConfig, create_vit


@dataclass(frozen=True)
class RingFormerConfig(ViTConfig):
    """The options of RingFormer-ViT, besides those of :class:`ViTConfig`.

    Args:
        signal_rank_divisor: rank of the level signals is C // signal_rank_divisor.
    """

    norm_eps: float = 1e-5
    signal_rank_divisor: int = option(16, least=1)

    names = {**ViTConfig.names, "rank": "embed_dim // signal_rank_divisor"}


class RingFormerViT(LoopedVisionTransformer):
    """One block, whose passes own their norms and level signals."""

    def __init__(self, **options: Any):
        super().__init__(RingFormerConfig.of(options))

    def make_loop(self, config: RingFormerConfig, tokens: int) -> Loop:
        signals = Signals(config.embed_dim // config.signal_rank_divisor)
        return ringformer(config.shape(), config.passes(), signals, **config.parts())


def size(width: int, mlp: int, heads: int, depth: int) -> dict[str, Any]:
    """The options of a model of this size, as the paper's tables give it."""
    return dict(embed_dim=width, mlp_ratio=mlp / width, num_heads=heads, depth=depth)


_create_ringformer_vit = partial(create_vit, RingFormerViT)

# Of all models of the paper.
ringformer_cfg = partial(
    image_cfg,
    crop_pct=224 / 256,
    interpolation="bilinear",
    origin_url="https://github.com/eldor-fozilov/ringformer",
    paper_name="RingFormer: Rethinking Recurrent Transformer with Adaptive Level Signals",
    paper_ids="arXiv:2502.13181",
)

default_cfgs = generate_default_cfgs(
    dict.fromkeys(
        ("ringformer_vit", "ringformer_vit_wide", "ringformer_vit_small", "ringformer_vit_small_wide"), ringformer_cfg()
    )
)


@register_model
def ringformer_vit(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """RingFormer of Table 3"""
    return _create_ringformer_vit("ringformer_vit", pretrained, size(768, 3072, 12, 12), kwargs)


@register_model
def ringformer_vit_wide(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """RingFormer (scaled) of Table 3"""
    return _create_ringformer_vit("ringformer_vit_wide", pretrained, size(1284, 5120, 12, 12), kwargs)


@register_model
def ringformer_vit_small(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """RingFormer of Table 2, with 100 classes"""
    return _create_ringformer_vit("ringformer_vit_small", pretrained, size(512, 2048, 8, 6), kwargs)


@register_model
def ringformer_vit_small_wide(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """RingFormer (scaled) of Table 2, with 100 classes"""
    return _create_ringformer_vit("ringformer_vit_small_wide", pretrained, size(728, 3072, 8, 6), kwargs)
