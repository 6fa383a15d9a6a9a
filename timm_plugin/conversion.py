"""Converts looped vision transformers to timm's `VisionTransformer`."""

import timm
import torch.nn.functional as F
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer

from recurrence.weights.names import StateDict
from recurrence.weights.unshare import is_one, unshare
from timm_plugin._model import ImageModel
from timm_plugin._names import BLOCK
from timm_plugin._vit import LoopedVisionTransformer

# It has ImageNet's mean and std, like all models of this plugin; arguments set its sizes.
UPSTREAM = "deit_base_patch16_224"
EPSILON = 1e-6  # of both models' final norm, and of all norms of timm's
KINDS = ("weight", "bias")
REST = ("cls_token", "pos_embed", "patch_embed.proj.", "norm.", "head.")


def to_timm(model: ImageModel) -> VisionTransformer:
    """timm's `VisionTransformer` that computes what a looped model computes, in the dtype of its weights, in eval mode.

    Raises:
        ValueError: naming the part that timm's `VisionTransformer` cannot have, or `passes`, if it runs fewer; or for a
            model of another kind.
    """
    if not isinstance(model, ImageModel):
        raise ValueError(f"{type(model).__name__}: not a model of this plugin; there is nothing to unshare")
    if model.passes is not None:
        raise ValueError(f"passes={model.passes}: must be None; build the model with fewer passes instead")
    registered = getattr(model, "pretrained_cfg", {}).get("architecture")
    name = f"{registered or type(model).__name__} cannot become a VisionTransformer"
    stem = None if isinstance(model.patch_embed, PatchEmbed) else "it has a convolutional stem"
    if reason := model.unlike_upstream or stem:
        raise ValueError(f"{name}: {reason}")
    try:
        layers, factor = unshare(model.loop, EPSILON)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not is_one(factor):
        raise ValueError(f"norm_eps={model.config.norm_eps}: must be {EPSILON}, as timm's VisionTransformer has it")
    if not model.loop.blocks[0].pre_norm:
        raise ValueError(f"{name}: its blocks are post-norm, and timm's are pre-norm")
    if any(block.ffn is not None and block.ffn.activation is not F.gelu for block in model.loop.blocks):
        raise ValueError(f"{name}: the activation of its MLP is not torch.nn.functional.gelu, which timm's has")
    for method in ("embed", "positions", "levels", "encode", "pool"):
        if getattr(type(model), method) is not getattr(LoopedVisionTransformer, method):
            raise ValueError(f"{name}: it has a method `{method}` of its own")
    weights = {key: tensor for key, tensor in model.state_dict().items() if key.startswith(REST)}
    for index, layer in enumerate(layers):
        for theirs, ours in BLOCK.items():
            weights |= {f"blocks.{index}.{theirs}.{kind}": layer[f"{ours}.{kind}"] for kind in KINDS}
    dtype = next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
    converted = _upstream(model, layers).to(dtype)
    converted.load_state_dict(weights)
    return converted.eval()


def _upstream(model: ImageModel, layers: list[StateDict]) -> VisionTransformer:
    """timm's `VisionTransformer` without options, in the sizes of a model with these layers."""
    hidden, width = len(layers[0]["ffn.up.bias"]), model.embed_dim
    ratio = hidden / width
    return timm.create_model(
        UPSTREAM,
        img_size=tuple(model.patch_embed.img_size),
        patch_size=model.patch_embed.patch_size[0],
        in_chans=model.patch_embed.proj.in_channels,
        num_classes=model.num_classes,
        global_pool=model.global_pool,
        embed_dim=width,
        pos_embed="none" if model.pos_embed is None else "learn",
        depth=len(layers),
        num_heads=model.config.num_heads,
        mlp_ratio=ratio if int(width * ratio) == hidden else (hidden + 0.5) / width,  # which timm rounds down
        class_token=model.config.class_token,
        fc_norm=False,
    )
