"""SReT: a pyramid of three stages whose blocks run repeatedly, with sliced attention.

Paper: Sliced Recursive Transformer (arXiv:2111.05297), Table 5.

Differs from the published code: inference is deterministic (permutations are stored in the checkpoint, see
`recurrence.slicing`); blocks may run any number of times; drop path rates follow the depth
(`drop_path_placement="published"` uses the published rates); other image sizes are supported by resampling positions.

The class token and the patches of Table 3 were not released. Assumed here: PiT's patches, a class token without a
position, and between stages the same convolution for the class token, as a map of one place. This gives the paper's
parameter counts in all rows.

Not in the paper: SReT-Nano, a model for CIFAR-10 whose weights are part of this package, see
`weights/sret_nano.cifar10.md`.
"""

from functools import partial
from pathlib import Path
from typing import Any

from timm.models import generate_default_cfgs, register_model

from timm_plugin._create import SRET_URL, create, sret_cfg
from timm_plugin._sret import SReT

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
GLOBAL = ((1, 1),) * 3  # no slices in either run of a block, in any of the three stages

_cfg = partial(sret_cfg, pool_size=(7, 7), first_conv="patch_embed.conv1", origin_url=SRET_URL)

default_cfgs = generate_default_cfgs(
    {
        "sret_ext": _cfg(),
        "sret_t": _cfg(),
        "sret_tl": _cfg(),
        "sret_s": _cfg(),
        "sret_t_global": _cfg(),
        "sret_tl_global": _cfg(),
        "sret_s_global": _cfg(),
        "sret_nano.cifar10": _cfg(
            file=str(Path(__file__).parent / "weights" / "sret_nano.cifar10.safetensors"),
            license="mit",
            input_size=(3, 64, 64),
            pool_size=(4, 4),
            crop_pct=1.0,
            num_classes=10,
            label_names=CIFAR10,
        ),
    }
)


@register_model
def sret_ext(pretrained: bool = False, **kwargs: Any) -> SReT:
    """SReT-ExT of Table 5 (4.0M, 0.7 GMAC), whose shape is found, not published: 4,020,608 parameters, 0.71 GMAC."""
    # The paper gives ExT 4.0M parameters and 0.7 GMAC but no shape. Of the pyramids with a stem of this kind, two
    # passes per block, TL's ratios and these slices, width 48 with 1, 5 and 5 blocks is the nearest to both.
    model_args = dict(embed_dim=48, depths=(1, 5, 5), num_heads=(2, 4, 8), mlp_ratio=4.0, nll_ratio=1.0)
    return create(SReT, "sret_ext", pretrained, model_args, **kwargs)


@register_model
def sret_t(pretrained: bool = False, **kwargs: Any) -> SReT:
    """SReT-T of Table 5: width 64 to 256, MLP 3.6, NLL 1, slices 8, 4, 1 and 2, 1, 1. 4,755,979 parameters."""
    model_args = dict(embed_dim=64, depths=(2, 5, 3), num_heads=(2, 4, 8), mlp_ratio=3.6, nll_ratio=1.0)
    return create(SReT, "sret_t", pretrained, model_args, **kwargs)


@register_model
def sret_tl(pretrained: bool = False, **kwargs: Any) -> SReT:
    """SReT-TL of Table 5: SReT-T with MLP 4.0. 4,988,024 parameters."""
    model_args = dict(embed_dim=64, depths=(2, 5, 3), num_heads=(2, 4, 8), mlp_ratio=4.0, nll_ratio=1.0)
    return create(SReT, "sret_tl", pretrained, model_args, **kwargs)


@register_model
def sret_s(pretrained: bool = False, **kwargs: Any) -> SReT:
    """SReT-S of Table 5: width 126 to 504, heads of 42, MLP 3.0, NLL 2. 20,899,692 parameters."""
    model_args = dict(embed_dim=126, depths=(2, 5, 3), num_heads=(3, 6, 12), mlp_ratio=3.0, nll_ratio=2.0)
    return create(SReT, "sret_s", pretrained, model_args, **kwargs)


@register_model
def sret_t_global(pretrained: bool = False, **kwargs: Any) -> SReT:
    """SReT-T* of Table 5, without slices. 4,755,979 parameters."""
    model_args = dict(embed_dim=64, depths=(2, 5, 3), num_heads=(2, 4, 8), mlp_ratio=3.6, nll_ratio=1.0, groups=GLOBAL)
    return create(SReT, "sret_t_global", pretrained, model_args, **kwargs)


@register_model
def sret_tl_global(pretrained: bool = False, **kwargs: Any) -> SReT:
    """SReT-TL* of Table 5, without slices. 4,988,024 parameters."""
    model_args = dict(embed_dim=64, depths=(2, 5, 3), num_heads=(2, 4, 8), mlp_ratio=4.0, nll_ratio=1.0, groups=GLOBAL)
    return create(SReT, "sret_tl_global", pretrained, model_args, **kwargs)


@register_model
def sret_s_global(pretrained: bool = False, **kwargs: Any) -> SReT:
    """SReT-S* of Table 5, without slices. 20,899,692 parameters."""
    model_args = dict(
        embed_dim=126, depths=(2, 5, 3), num_heads=(3, 6, 12), mlp_ratio=3.0, nll_ratio=2.0, groups=GLOBAL
    )
    return create(SReT, "sret_s_global", pretrained, model_args, **kwargs)


@register_model
def sret_nano(pretrained: bool = False, **kwargs: Any) -> SReT:
    """SReT for CIFAR-10: widths 64 and 128, a block each, run four times. 291,250 parameters with 10 classes."""
    model_args = dict(
        embed_dim=64, depths=(1, 1), num_heads=(2, 4), groups=((1,), (1,)), loops=4, mlp_ratio=3.5, nll_ratio=0.0
    )
    return create(SReT, "sret_nano", pretrained, model_args, **kwargs)
