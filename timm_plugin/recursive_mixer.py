"""MLP-Mixer with recursion and learnable residual coefficients.

Paper: Sliced Recursive Transformer (arXiv:2111.05297), section 5.5, and Equation 7, in which a block runs twice in
succession without a projection; on MLP-Mixer (arXiv:2105.01601).

The paper does not say which Mixer, and the published code has none. Assumed here: S/16 and B/16 of the Mixer paper,
and four coefficients per block as in SReT.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from timm.models import generate_default_cfgs, register_model
from torch import nn

from recurrence.loop import Loop
from recurrence.papers.sret import MixerBlock, Recursion, sret
from timm_plugin._vit import create_vit
from timm_plugin.recursive_deit import RecursiveConfig, RecursiveVisionTransformer
from timm_plugin.sret import sret_cfg


@dataclass(frozen=True)
class RecursiveMixerConfig(RecursiveConfig):
    """The options of recursive Mixers: those of :class:`RecursiveConfig`, but none of attention and positions.

    Here `proj_drop_rate` is the dropout on the output of the MLP over the tokens, `mlp_drop_rate` that on the output of
    the MLP over the features and on the hidden units of both.
    """

    global_pool: str = "avg"
    num_heads: int = 1
    class_token: bool = False
    pos_embed: str = "none"
    lrc: bool = True

    fixed = ("num_heads", "class_token", "pos_embed", "attn_drop_rate")


class RecursiveMixer(RecursiveVisionTransformer):
    """Mixer's blocks in an order, each with an MLP over the tokens of hidden width C / 2."""

    set_input_size = property()  # so that hasattr says no, as of timm's Mixer: the weights fit one number of tokens

    def __init__(self, **options: Any):
        super().__init__(RecursiveMixerConfig.of(options))

    def make_loop(self, config: RecursiveMixerConfig, tokens: int) -> Loop:
        mixing = dict(tokens=tokens, mixing_width=config.embed_dim // 2, ffn_dropout=config.mlp_drop_rate)
        return sret(config.shape(), config.passes(), Recursion(config.lrc), MixerBlock, **mixing)


_create_recursive_mixer = partial(create_vit, RecursiveMixer)

default_cfgs = generate_default_cfgs(
    dict.fromkeys(("recursive_mixer_s16", "recursive_mixer_b16"), sret_cfg(crop_pct=0.875))
)


@register_model
def recursive_mixer_s16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Mixer-S/16, each of its 8 blocks run twice"""
    return _create_recursive_mixer("recursive_mixer_s16", pretrained, dict(embed_dim=512, depth=8, loops=2), kwargs)


@register_model
def recursive_mixer_b16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Mixer-B/16, each of its 12 blocks run twice"""
    return _create_recursive_mixer("recursive_mixer_b16", pretrained, dict(embed_dim=768, depth=12, loops=2), kwargs)
