"""MLP-Mixer with recursion and learnable residual coefficients.

Paper: Sliced Recursive Transformer (arXiv:2111.05297), section 5.5, on MLP-Mixer (arXiv:2105.01601).

The paper does not say which Mixer, and the published code has none. Assumed here: S/16 and B/16 of the Mixer paper,
each block run twice in succession, four coefficients per block as in SReT, no projection between the passes.
"""

from dataclasses import dataclass

from recurrence.loop import Loop
from recurrence.papers.sret import MixerBlock, Recursion, sret
from timm_plugin._create import register_family, sret_cfg
from timm_plugin._vit import LoopedVisionTransformer
from timm_plugin.recursive_deit import RecursiveConfig


class LoopedMixer(LoopedVisionTransformer):
    """A Mixer with a loop over depth."""

    set_input_size = property()  # so that hasattr says no, as of timm's Mixer: the weights fit one number of tokens


@dataclass(frozen=True)
class RecursiveMixerConfig(RecursiveConfig):
    """The options of recursive Mixers, which are those of :class:`RecursiveConfig` but of attention."""

    global_pool: str = "avg"
    num_heads: int = 1
    class_token: bool = False
    pos_embed: str = "none"
    lrc: bool = True

    model = LoopedMixer
    fixed = ("num_heads", "class_token", "pos_embed", "attn_drop_rate")

    def loop(self, tokens: int) -> Loop:
        """Mixer's blocks in the order, with an MLP over the tokens of hidden width C / 2."""
        mixing = dict(tokens=tokens, mixing_width=self.embed_dim // 2, ffn_dropout=self.mlp_drop_rate)
        return sret(self.shape(), self.passes(), Recursion(self.lrc), MixerBlock, **mixing)


register_family(
    __name__,
    RecursiveMixerConfig,
    sret_cfg(crop_pct=0.875),
    {
        "recursive_mixer_s16": ("Mixer-S/16, each of its 8 blocks run twice", dict(embed_dim=512, depth=8, loops=2)),
        "recursive_mixer_b16": ("Mixer-B/16, each of its 12 blocks run twice", dict(embed_dim=768, depth=12, loops=2)),
    },
)
