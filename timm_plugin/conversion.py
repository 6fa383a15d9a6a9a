"""Converts looped vision transformers to timm's `VisionTransformer` and back."""

import timm
from timm.layers import PatchEmbed
from timm.models.vision_transformer import Block, Mlp, VisionTransformer
from torch import nn

from recurrence.errors import FieldError
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
        ValueError: naming the part that timm's `VisionTransformer` cannot have.
    """
    name = f"{_name(model)} cannot become a VisionTransformer"
    if model.config.unlike_upstream:
        raise ValueError(f"{name}: {model.config.unlike_upstream}")
    if not isinstance(model.patch_embed, PatchEmbed):
        raise ValueError(f"{name}: it has a convolutional stem")
    try:
        layers, factor = unshare(model.loop, EPSILON)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not is_one(factor):
        raise ValueError(f"norm_eps={model.config.norm_eps}: must be {EPSILON}, as timm's VisionTransformer has it")
    width, hidden = model.num_features, len(layers[0]["ffn.up.bias"])
    ratio = hidden / width
    converted = timm.create_model(
        UPSTREAM,
        **_shape(model),
        depth=len(layers),
        num_heads=model.config.num_heads,
        mlp_ratio=ratio if int(width * ratio) == hidden else (hidden + 0.5) / width,  # timm rounds down
        class_token=model.config.class_token,
        pos_embed="none" if model.pos_embed is None else "learn",
        fc_norm=False,
    )
    weights = {key: tensor for key, tensor in model.state_dict().items() if key.startswith(REST)}
    for index, layer in enumerate(layers):
        for theirs, ours in BLOCK.items():
            weights |= {f"blocks.{index}.{theirs}.{kind}": layer[f"{ours}.{kind}"] for kind in KINDS}
    return _loaded(converted, weights)


def _name(model: nn.Module) -> str:
    """The registered name of a model, or that of its class if it was built without one."""
    return getattr(model, "pretrained_cfg", {}).get("architecture") or type(model).__name__


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
    depth, width = len(model.blocks), model.embed_dim
    if not 1 <= unique_layers <= depth or depth % unique_layers:
        raise ValueError(f"--unique-layers={unique_layers}: must be >= 1 and divide the {depth} layers")
    try:
        STRATEGIES[strategy].order(unique_layers, depth)
    except FieldError as error:
        raise ValueError(error.message({"unique_layers": "--unique-layers", "layers": "depth"}.get)) from None
    if rank is not None and not 1 <= rank <= width:
        raise ValueError(f"--rank={rank}: must be >= 1 and <= the model's width, {width}")
    first = model.blocks[0]
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
        pos_embed="none" if model.pos_embed is None else "learn",
        norm_eps=first.norm1.eps,
    )
    weights, layers = _rest_and_layers(model)
    weights |= {f"loop.{key}": tensor for key, tensor in share(layers, looped.loop.order, rank).items()}
    return _loaded(looped, weights)


def _rest_and_layers(model: VisionTransformer) -> tuple[StateDict, list[StateDict]]:
    """The weights of timm's model: those outside its blocks, and those of each block by our names."""
    theirs, layers = model.state_dict(), []
    rest = {key: theirs.pop(key) for key in list(theirs) if key.startswith(REST)}
    for index in range(len(model.blocks)):
        names = {f"{ours}.{kind}": f"blocks.{index}.{name}.{kind}" for name, ours in BLOCK.items() for kind in KINDS}
        missing = sorted(set(names.values()) - set(theirs))
        if missing:
            raise ValueError(f"{missing[0]}: a looped model has this, the model to share has not")
        layers.append({ours: theirs.pop(name) for ours, name in names.items()})
    if theirs:
        raise ValueError(f"{next(iter(theirs))}: a looped model has no such part")
    return rest, layers


def _check_shareable(model: nn.Module) -> None:
    """Raises ValueError for settings that do not show in the names of the weights."""
    if type(model) is not VisionTransformer:
        raise ValueError(f"{type(model).__name__}: only timm's VisionTransformer can be shared")
    patch = model.patch_embed.patch_size
    if model.global_pool not in LoopedVisionTransformer.pools:
        raise ValueError(f"global_pool={model.global_pool!r}: must be one of {LoopedVisionTransformer.pools}")
    if model.pool_include_prefix:
        raise ValueError("pool_include_prefix=True: a looped model only pools patches")
    if model.no_embed_class:
        raise ValueError("no_embed_class=True: a looped model has a position for the class token")
    if patch[0] != patch[1]:
        raise ValueError(f"patch_size={patch}: must be square")
    if not isinstance(model.norm, nn.LayerNorm):
        raise ValueError("final_norm: a looped model has a norm before its pooling")
    if model.norm.eps != EPSILON:
        raise ValueError(f"norm_layer: the last norm's epsilon must be {EPSILON}")
    for block in model.blocks:
        if type(block) is not Block:
            raise ValueError(f"block_fn={type(block).__name__}: must be timm's Block")
        if type(block.mlp) is not Mlp:
            raise ValueError(f"mlp_layer={type(block.mlp).__name__}: must be timm's Mlp")
        if not isinstance(block.mlp.act, nn.GELU) or block.mlp.act.approximate != "none":
            raise ValueError("act_layer: a looped model has an exact GELU")


def _shape(model: nn.Module) -> dict:
    """The arguments that have the same name for both kinds of models."""
    return dict(
        img_size=tuple(model.patch_embed.img_size),
        patch_size=model.patch_embed.patch_size[0],
        in_chans=model.patch_embed.proj.in_channels,
        num_classes=model.num_classes,
        global_pool=model.global_pool,
        embed_dim=model.embed_dim,
    )


def _loaded(model: nn.Module, weights: StateDict) -> nn.Module:
    """The model with these weights, in their dtype and in eval mode."""
    dtype = next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
    model.to(dtype).load_state_dict(weights)
    return model.eval()
