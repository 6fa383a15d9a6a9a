"""The unshared ViT that RingFormer-ViT is compared with; with an `order`, its layers may be shared in any way.

Paper: RingFormer (arXiv:2502.13181), section 4.1, appendix A.1, Tables 2 and 3. Everything else is as in
:mod:`timm_plugin.ringformer_vit`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from timm.models import generate_default_cfgs, register_model
from torch import nn

from recurrence.loop import Loop
from recurrence.order import Order
from recurrence.papers.takase import shared_layers
from timm_plugin._vit import LoopedVisionTransformer, ViTConfig, create_vit
from timm_plugin.ringformer_vit import ringformer_cfg, size


@dataclass(frozen=True)
class PlainConfig(ViTConfig):
    """The options of the plain ViT, which are those of :class:`ViTConfig`."""

    def usual_order(self) -> Order:
        """0 1 2 ..."""
        return tuple(range(self.depth))


class PlainViT(LoopedVisionTransformer):
    """Plain layers in an order."""

    def __init__(self, **options: Any):
        super().__init__(PlainConfig.of(options))

    def make_loop(self, config: PlainConfig, tokens: int) -> Loop:
        return shared_layers(config.shape(), config.passes(), **config.parts())


_create_plain_vit = partial(create_vit, PlainViT)

default_cfgs = generate_default_cfgs(
    dict.fromkeys(("plain_vit", "plain_vit_small", "plain_vit_small_narrow"), ringformer_cfg())
)


@register_model
def plain_vit(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Unshared ViT of Table 3"""
    return _create_plain_vit("plain_vit", pretrained, size(768, 3072, 12, 12), kwargs)


@register_model
def plain_vit_small(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Unshared ViT of Table 2, with 100 classes"""
    return _create_plain_vit("plain_vit_small", pretrained, size(512, 2048, 8, 6), kwargs)


@register_model
def plain_vit_small_narrow(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Unshared ViT (down-scaled) of Table 2, with 100 classes"""
    return _create_plain_vit("plain_vit_small_narrow", pretrained, size(328, 1536, 8, 6), kwargs)
