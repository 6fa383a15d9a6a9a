"""One Wide FFN for images, which RingFormer-ViT is compared with: each depth has an attention, and all share one MLP.

Paper: RingFormer (arXiv:2502.13181), section 4.1, appendix A.1, Tables 2 and 3; One Wide Feedforward Is All You
Need (arXiv:2309.01826). Everything else is as in :mod:`timm_plugin.ringformer_vit`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from timm.models import generate_default_cfgs, register_model
from torch import nn

from recurrence.loop import Loop
from recurrence.papers.baselines import one_wide_ffn
from timm_plugin._vit import LoopedVisionTransformer, ViTConfig, create_vit
from timm_plugin.ringformer_vit import ringformer_cfg, size


@dataclass(frozen=True)
class OneWideConfig(ViTConfig):
    """The options of One Wide FFN, which are those of :class:`ViTConfig` but the order."""

    fixed = ("order",)

    def unshared(self, blocks: Sequence[int]) -> dict[str, Any]:
        """Raises ValueError."""
        raise ValueError("One Wide FFN shares only its MLP, so no block runs more than once")


class OneWideViT(LoopedVisionTransformer):
    """Attention blocks in turn, the MLP after each of them."""

    passes_per_depth = 2

    def __init__(self, **options: Any):
        super().__init__(OneWideConfig.of(options))

    def make_loop(self, config: OneWideConfig, tokens: int) -> Loop:
        return one_wide_ffn(config.shape(), config.depth, **config.parts())


_create_owf_vit = partial(create_vit, OneWideViT)

default_cfgs = generate_default_cfgs(
    dict.fromkeys(("owf_vit", "owf_vit_small", "owf_vit_small_narrow"), ringformer_cfg())
)


@register_model
def owf_vit(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """One Wide FFN of Table 3"""
    return _create_owf_vit("owf_vit", pretrained, size(768, 3072, 12, 12), kwargs)


@register_model
def owf_vit_small(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """One Wide FFN of Table 2, with 100 classes"""
    return _create_owf_vit("owf_vit_small", pretrained, size(512, 2048, 8, 6), kwargs)


@register_model
def owf_vit_small_narrow(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """One Wide FFN (down-scaled) of Table 2, with 100 classes"""
    return _create_owf_vit("owf_vit_small_narrow", pretrained, size(376, 1024, 8, 6), kwargs)
