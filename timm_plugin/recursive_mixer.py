"""MLP-Mixer with recursion and learnable residual coefficients.

Paper: Sliced Recursive Transformer (arXiv:2111.05297), section 5.5, on MLP-Mixer (arXiv:2105.01601).

The paper does not say which Mixer, and the published code has none. Assumed here: S/16 and B/16 of the Mixer paper,
each block run twice in succession, four coefficients per block as in SReT, no projection between the passes.
"""

from functools import partial
from typing import Any

from timm.models import generate_default_cfgs, register_model

from timm_plugin._create import create, sret_cfg
from timm_plugin._vit import LoopedVisionTransformer

MIXER = dict(token_mixing=True, num_heads=1, class_token=False, pos_embed="none", global_pool="avg")

_cfg = partial(sret_cfg, crop_pct=0.875, first_conv="patch_embed.proj")

default_cfgs = generate_default_cfgs({"recursive_mixer_s16": _cfg(), "recursive_mixer_b16": _cfg()})


class LoopedMixer(LoopedVisionTransformer):
    """A Mixer with a loop over depth. Like timm's, it has no `set_input_size`: its weights fit one number of tokens."""

    set_input_size = property()  # has no getter, so that Python asks __getattr__, and hasattr is False

    def __getattr__(self, name: str) -> Any:
        if name == "set_input_size":
            raise AttributeError(f"set_input_size: an MLP over the tokens takes {self.patch_embed.img_size} only")
        return super().__getattr__(name)


@register_model
def recursive_mixer_s16(pretrained: bool = False, **kwargs: Any) -> LoopedMixer:
    """Mixer-S/16, each of its 8 blocks run twice: width 512. 18,528,296 parameters whatever `loops`."""
    model_args = dict(MIXER, embed_dim=512, depth=8, loops=2, lrc=True)
    return create(LoopedMixer, "recursive_mixer_s16", pretrained, model_args, **kwargs)


@register_model
def recursive_mixer_b16(pretrained: bool = False, **kwargs: Any) -> LoopedMixer:
    """Mixer-B/16, each of its 12 blocks run twice: width 768. 59,880,520 parameters whatever `loops`."""
    model_args = dict(MIXER, embed_dim=768, depth=12, loops=2, lrc=True)
    return create(LoopedMixer, "recursive_mixer_b16", pretrained, model_args, **kwargs)
