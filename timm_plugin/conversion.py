"""Converts looped vision transformers to timm's `VisionTransformer` and back."""

import copy

import timm
import torch
from timm.layers import PatchEmbed
from timm.models.vision_transformer import Block, Mlp, VisionTransformer
from torch import nn

from recurrence.order import STRATEGIES
from recurrence.weights.names import StateDict
from recurrence.weights.share import share
from recurrence.weights.unshare import is_one, unshare
from timm_plugin._model import ImageModel
from timm_plugin._names import BLOCK
from timm_plugin._vit import LoopedVisionTransformer
from timm_plugin.recursive_deit import STRATEGY_NAMES

# Both have ImageNet's mean and std, like all models of this plugin; arguments set all their sizes.
UPSTREAM, LOOPED = "deit_base_patch16_224", "recursive_deit_tiny"
EPSILON = 1e-6  # of both models' final norm, and of all norms of timm's
KINDS = ("weight", "bias")
REST = ("cls_token", "pos_embed", "patch_embed.proj.", "norm.", "head.")


def to_timm(model: ImageModel) -> VisionTransformer:
    """timm's `VisionTransformer` that computes what a looped model computes.

    Raises:
        ValueError: naming the part that timm's `VisionTransformer` cannot have, or a model of another kind.
    """
    if not isinstance(model, ImageModel):
        raise ValueError(f"{type(model).__name__}: not a model of this plugin; there is nothing to unshare")
    registered = getattr(model, "pretrained_cfg", {}).get("architecture")
    name = f"{registered or type(model).__name__} cannot become a VisionTransformer"
    stem = None if isinstance(model.patch_embed, PatchEmbed) else "it has a convolutional stem"
    if reason := model.config.unlike_upstream or stem:
        raise ValueError(f"{name}: {reason}")
    try:
        layers, factor = unshare(model.loop, EPSILON)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not is_one(factor):
        raise ValueError(f"norm_eps={model.config.norm_eps}: must be {EPSILON}, as timm's VisionTransformer has it")
    config = model.config
    converted = _upstream(model, len(layers), config.num_heads, len(layers[0]["ffn.up.bias"]), config.class_token)
    weights = {key: tensor for key, tensor in model.state_dict().items() if key.startswith(REST)}
    for index, layer in enumerate(layers):
        for theirs, ours in BLOCK.items():
            weights |= {f"blocks.{index}.{theirs}.{kind}": layer[f"{ours}.{kind}"] for kind in KINDS}
    return _loaded(converted, weights)


def to_looped(model: nn.Module, strategy: str, unique_layers: int, rank: int | None) -> LoopedVisionTransformer:
    """A looped model from one of timm's, see :mod:`recurrence.weights.share`.

    Args:
        model: timm's; it is not changed.
        strategy: which layers share a block, one of :data:`recurrence.order.STRATEGIES`.
        unique_layers: M, stored blocks.
        rank: of each pass's terms; None for none, so that the layers of a block are only averaged.

    Raises:
        ValueError: naming the option and the rule, or the part of the model that a looped model cannot have.
    """
    _check_shareable(model)
    depth, width, first = len(model.blocks), model.embed_dim, model.blocks[0]
    if not 1 <= unique_layers <= depth or depth % unique_layers:
        raise ValueError(f"--unique-layers={unique_layers}: must be >= 1 and divide the {depth} layers")
    if not STRATEGIES[strategy].fits(unique_layers, depth):
        raise ValueError(f"--unique-layers={unique_layers}: {STRATEGIES[strategy].needs}")
    if rank is not None and not 1 <= rank <= width:
        raise ValueError(f"--rank={rank}: must be >= 1 and <= the model's width, {width}")
    looped = timm.create_model(
        LOOPED,
        **_shape(model),
        depth=unique_layers,
        loops=depth // unique_layers,
        loop_order=STRATEGY_NAMES.get(strategy, strategy),
        residual_rank=rank,
        num_heads=first.attn.num_heads,
        mlp_ratio=first.mlp.fc1.out_features / width,
        class_token=model.has_class_token,
    )
    theirs = model.state_dict()
    layers = [
        {f"{ours}.{kind}": theirs[f"blocks.{index}.{name}.{kind}"] for name, ours in BLOCK.items() for kind in KINDS}
        for index in range(depth)
    ]
    weights = {key: tensor for key, tensor in theirs.items() if key.startswith(REST)}
    weights |= {f"loop.{key}": tensor for key, tensor in share(layers, looped.loop.order, rank).items()}
    return _loaded(looped, weights)


def _check_shareable(model: nn.Module) -> None:
    """Raises ValueError unless a model computes what timm's `VisionTransformer` of its size and weights computes."""
    if type(model) is not VisionTransformer or any(type(block) is not Block for block in model.blocks):
        raise ValueError(f"{type(model).__name__}: only timm's VisionTransformer, of timm's Block, can be shared")
    attention, mlp = model.blocks[0].attn, model.blocks[0].mlp
    if type(mlp) is not Mlp:
        raise ValueError(f"mlp_layer={type(mlp).__name__}: must be timm's Mlp")
    plain = _upstream(model, len(model.blocks), attention.num_heads, mlp.fc1.out_features, model.has_class_token)
    try:
        plain.double().eval().load_state_dict(model.state_dict())
    except RuntimeError as error:
        raise ValueError(f"a looped model has other parts: {error}") from None
    image = torch.randn(1, model.patch_embed.proj.in_channels, *model.patch_embed.img_size, dtype=torch.float64)
    with torch.no_grad():
        if not torch.allclose(plain(image), copy.deepcopy(model).double().eval()(image)):
            raise ValueError("timm's VisionTransformer of this size and these weights, without options, differs")


def _upstream(model: nn.Module, depth: int, heads: int, hidden: int, class_token: bool) -> VisionTransformer:
    """timm's `VisionTransformer` without options, in the sizes of a model of either kind."""
    ratio = hidden / model.embed_dim
    return timm.create_model(
        UPSTREAM,
        **_shape(model),
        depth=depth,
        num_heads=heads,
        mlp_ratio=ratio if int(model.embed_dim * ratio) == hidden else (hidden + 0.5) / model.embed_dim,  # rounds down
        class_token=class_token,
        fc_norm=False,
    )


def _shape(model: nn.Module) -> dict:
    """The arguments that have the same name for both kinds of models."""
    return dict(
        img_size=tuple(model.patch_embed.img_size),
        patch_size=model.patch_embed.patch_size[0],
        in_chans=model.patch_embed.proj.in_channels,
        num_classes=model.num_classes,
        global_pool=model.global_pool,
        embed_dim=model.embed_dim,
        pos_embed="none" if model.pos_embed is None else "learn",
    )


def _loaded(model: nn.Module, weights: StateDict) -> nn.Module:
    """The model with these weights, in their dtype and in eval mode."""
    dtype = next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
    model.to(dtype).load_state_dict(weights)
    return model.eval()
