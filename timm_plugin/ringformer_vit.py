"""RingFormer-ViT and the models it is compared with: UiT, OWF and a plain ViT.

Paper: RingFormer (arXiv:2502.13181), section 4.2, Tables 2 and 3. The blocks are pre-norm. In RingFormer, projections
read the normalised tokens, and level signals read the stream before the norm.

Differs from the published code: the two factors of a level signal are never multiplied out; UiT stores the position and
depth parts of its table separately; other image sizes are supported by resampling tables.
Differs from timm: `proj_drop_rate` only applies to attention. The published setting is `pos_drop_rate=0.1,
mlp_drop_rate=0.1`.
"""

from functools import partial
from typing import Any

from timm.models import generate_default_cfgs, register_model

from timm_plugin._create import create, image_cfg
from timm_plugin._vit import LoopedVisionTransformer

_cfg = partial(
    image_cfg,
    crop_pct=224 / 256,
    interpolation="bilinear",
    first_conv="patch_embed.proj",
    origin_url="https://github.com/eldor-fozilov/ringformer",
    paper_name="RingFormer: Rethinking Recurrent Transformer with Adaptive Level Signals",
    paper_ids="arXiv:2502.13181",
)

RINGFORMER = dict(shared=True, level_signal="low-rank", norm_eps=1e-5)

default_cfgs = generate_default_cfgs(
    {
        "ringformer_vit": _cfg(),
        "ringformer_vit_wide": _cfg(),
        "uit": _cfg(),
        "uit_wide": _cfg(),
        "owf_vit": _cfg(),
        "plain_vit": _cfg(),
        "ringformer_vit_small": _cfg(),
        "ringformer_vit_small_wide": _cfg(),
        "uit_small": _cfg(),
        "uit_small_wide": _cfg(),
        "owf_vit_small": _cfg(),
        "owf_vit_small_narrow": _cfg(),
        "plain_vit_small": _cfg(),
        "plain_vit_small_narrow": _cfg(),
    }
)


@register_model
def ringformer_vit(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """RingFormer of Table 3: width 768, MLP 3072, 12 passes of one block, rank 48. 12,022,504 parameters."""
    model_args = dict(RINGFORMER, embed_dim=768, depth=12, num_heads=12, mlp_ratio=4.0)
    return create(LoopedVisionTransformer, "ringformer_vit", pretrained, model_args, **kwargs)


@register_model
def ringformer_vit_wide(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """RingFormer (scaled) of Table 3: width 1284, MLP 5120, rank 80. 31,953,324 parameters."""
    model_args = dict(RINGFORMER, embed_dim=1284, depth=12, num_heads=12, mlp_ratio=5120 / 1284)
    return create(LoopedVisionTransformer, "ringformer_vit_wide", pretrained, model_args, **kwargs)


@register_model
def uit(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """Universal Transformer of Table 3: width 768, MLP 3072, 12 passes of one block. 8,449,768 parameters."""
    model_args = dict(embed_dim=768, depth=12, num_heads=12, mlp_ratio=4.0, shared=True, level_signal="static")
    return create(LoopedVisionTransformer, "uit", pretrained, model_args, **kwargs)


@register_model
def uit_wide(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """Universal Transformer (scaled) of Table 3: width 1560, MLP 6240. 31,988,800 parameters."""
    model_args = dict(embed_dim=1560, depth=12, num_heads=12, mlp_ratio=4.0, shared=True, level_signal="static")
    return create(LoopedVisionTransformer, "uit_wide", pretrained, model_args, **kwargs)


@register_model
def owf_vit(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """One Wide FFN of Table 3: width 768, 12 attentions, one MLP of 3072. 34,452,712 parameters."""
    model_args = dict(embed_dim=768, depth=12, num_heads=12, mlp_ratio=4.0, shared_mlp=True)
    return create(LoopedVisionTransformer, "owf_vit", pretrained, model_args, **kwargs)


@register_model
def plain_vit(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """The unshared ViT of Table 3: width 768, MLP 3072, 12 blocks, fixed positions. 86,416,360 parameters."""
    model_args = dict(embed_dim=768, depth=12, num_heads=12, mlp_ratio=4.0)
    return create(LoopedVisionTransformer, "plain_vit", pretrained, model_args, **kwargs)


@register_model
def ringformer_vit_small(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """RingFormer of Table 2: width 512, MLP 2048, 6 passes, rank 32. 4,395,620 parameters with 100 classes."""
    model_args = dict(RINGFORMER, embed_dim=512, depth=6, num_heads=8, mlp_ratio=4.0)
    return create(LoopedVisionTransformer, "ringformer_vit_small", pretrained, model_args, **kwargs)


@register_model
def ringformer_vit_small_wide(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """RingFormer (scaled) of Table 2: width 728, MLP 3072, rank 45. 8,824,348 parameters with 100 classes."""
    model_args = dict(RINGFORMER, embed_dim=728, depth=6, num_heads=8, mlp_ratio=3072 / 728)
    return create(LoopedVisionTransformer, "ringformer_vit_small_wide", pretrained, model_args, **kwargs)


@register_model
def uit_small(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """Universal Transformer of Table 2: width 512, MLP 2048, 6 passes. 3,598,948 parameters with 100 classes."""
    model_args = dict(embed_dim=512, depth=6, num_heads=8, mlp_ratio=4.0, shared=True, level_signal="static")
    return create(LoopedVisionTransformer, "uit_small", pretrained, model_args, **kwargs)


@register_model
def uit_small_wide(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """Universal Transformer (scaled) of Table 2: width 848, MLP 3072. 8,836,788 parameters with 100 classes."""
    model_args = dict(embed_dim=848, depth=6, num_heads=8, mlp_ratio=3072 / 848, shared=True, level_signal="static")
    return create(LoopedVisionTransformer, "uit_small_wide", pretrained, model_args, **kwargs)


@register_model
def owf_vit_small(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """One Wide FFN of Table 2: width 512, one MLP of 2048, 6 attentions. 8,857,188 parameters with 100 classes."""
    model_args = dict(embed_dim=512, depth=6, num_heads=8, mlp_ratio=4.0, shared_mlp=True)
    return create(LoopedVisionTransformer, "owf_vit_small", pretrained, model_args, **kwargs)


@register_model
def owf_vit_small_narrow(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """One Wide FFN (down-scaled) of Table 2: width 376, MLP 1024. 4,506,732 parameters with 100 classes."""
    model_args = dict(embed_dim=376, depth=6, num_heads=8, mlp_ratio=1024 / 376, shared_mlp=True)
    return create(LoopedVisionTransformer, "owf_vit_small_narrow", pretrained, model_args, **kwargs)


@register_model
def plain_vit_small(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """The unshared ViT of Table 2: width 512, MLP 2048, 6 blocks. 19,360,868 parameters with 100 classes."""
    model_args = dict(embed_dim=512, depth=6, num_heads=8, mlp_ratio=4.0)
    return create(LoopedVisionTransformer, "plain_vit_small", pretrained, model_args, **kwargs)


@register_model
def plain_vit_small_narrow(pretrained: bool = False, **kwargs: Any) -> LoopedVisionTransformer:
    """The unshared ViT (down-scaled) of Table 2: width 328, MLP 1536. 8,940,756 parameters with 100 classes."""
    model_args = dict(embed_dim=328, depth=6, num_heads=8, mlp_ratio=1536 / 328)
    return create(LoopedVisionTransformer, "plain_vit_small_narrow", pretrained, model_args, **kwargs)
