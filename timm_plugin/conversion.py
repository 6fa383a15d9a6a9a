"""Looped vision transformers as timm's `VisionTransformer` and back, by :mod:`recurrence.weights`."""

import timm
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from recurrence.weights.names import StateDict
from recurrence.weights.share import share
from recurrence.weights.unshare import Factor, is_one, unshare
from timm_plugin._model import ImageModel
from timm_plugin._vit import LoopedVisionTransformer
from timm_plugin._vit_config import NAMES

# A VisionTransformer with ImageNet's mean and std, as this plugin's models have; every size of it is an argument.
UPSTREAM, LOOPED = "deit_base_patch16_224", "recursive_deit_tiny"
EPSILON = 1e-6  # of both models' final norm, and of all norms of timm's
KINDS = ("weight", "bias")
BLOCK = {  # the parts of a block, by timm's names
    "norm1": "norms.0",
    "attn.qkv": "self_attn.qkv",
    "attn.proj": "self_attn.out",
    "norm2": "norms.1",
    "mlp.fc1": "ffn.up",
    "mlp.fc2": "ffn.down",
}
REST = ("cls_token", "pos_embed", "patch_embed.proj.", "norm.", "head.")


def unshared(model: ImageModel) -> VisionTransformer:
    """timm's own model that computes what a looped one computes.

    Raises:
        ValueError: naming what timm's `VisionTransformer` has no place for.
    """
    name = type(model).__name__
    if not isinstance(model, LoopedVisionTransformer):
        raise ValueError(f"{name}: timm's VisionTransformer has no stages")
    if model.config.stem != "patch":
        raise ValueError(f"{name}: timm's VisionTransformer has no convolutional stem")
    if model.level_embed is not None or model.depth_embed is not None:
        raise ValueError(f"{name}: positions and depths are added before every pass, by timm's blocks never")
    layers, factor = _layers(model)
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


def _layers(model: LoopedVisionTransformer) -> tuple[list[StateDict], Factor]:
    try:
        return unshare(model.loop, EPSILON)
    except ValueError as error:
        raise ValueError(f"{type(model).__name__}: does not become timm's own: {error}") from None


def shared(model: nn.Module, strategy: str, unique_layers: int, rank: int | None) -> LoopedVisionTransformer:
    """The looped model that stands for one of timm's.

    Args:
        model: timm's; it is left as it is.
        strategy: how its layers are tied, one of :data:`recurrence.order.STRATEGIES`.
        unique_layers: M, stored blocks.
        rank: of each pass's terms; None for none, which averages what is tied and drops the rest.

    Raises:
        ValueError: naming the option and the rule, or what the model has and a loop has not.
    """
    _check_shareable(model)
    depth, width = len(model.blocks), model.embed_dim
    if not 1 <= unique_layers <= depth or depth % unique_layers:
        raise ValueError(f"--unique-layers={unique_layers}: must be >= 1 and divide the {depth} layers")
    if rank is not None and not 1 <= rank <= width:
        raise ValueError(f"--rank={rank}: must be >= 1 and <= the model's width, {width}")
    first = model.blocks[0]
    looped = timm.create_model(
        LOOPED,
        **_shape(model),
        depth=unique_layers,
        loops=depth // unique_layers,
        loop_order=NAMES.get(strategy, strategy),
        residual_rank=rank,
        num_heads=first.attn.num_heads,
        mlp_ratio=first.mlp.fc1.out_features / width,
        class_token=model.has_class_token,
        pos_embed="none" if model.pos_embed is None else "learn",
        norm_eps=first.norm1.eps,
    )
    theirs, layers = model.state_dict(), []
    weights = {key: theirs.pop(key) for key in list(theirs) if key.startswith(REST)}
    for index in range(depth):
        names = {f"{ours}.{kind}": f"blocks.{index}.{name}.{kind}" for name, ours in BLOCK.items() for kind in KINDS}
        missing = sorted(set(names.values()) - set(theirs))
        if missing:
            raise ValueError(f"{missing[0]}: a looped model has this, the model to share has not")
        layers.append({ours: theirs.pop(name) for ours, name in names.items()})
    if theirs:
        raise ValueError(f"{next(iter(theirs))}: a looped model has no such part")
    weights |= {f"loop.{key}": tensor for key, tensor in share(layers, looped.loop.order, rank).items()}
    return _loaded(looped, weights)


def _check_shareable(model: nn.Module) -> None:
    """Refuses what does not show in the names of the weights."""
    if type(model) is not VisionTransformer:
        raise ValueError(f"{type(model).__name__}: only timm's VisionTransformer can be shared")
    patch = model.patch_embed.patch_size
    activations = [block.mlp.act for block in model.blocks]
    rules = {
        f"global_pool={model.global_pool!r}: must be one of {LoopedVisionTransformer.pools}": model.global_pool
        in LoopedVisionTransformer.pools,
        "pool_include_prefix=True: a looped model pools patches alone": not model.pool_include_prefix,
        "no_embed_class=True: a looped model has a position for the class token": not model.no_embed_class,
        f"patch_size={patch}: must be square": patch[0] == patch[1],
        "final_norm: a looped model has a norm before its pooling": isinstance(model.norm, nn.LayerNorm),
        f"norm_layer: the last norm's epsilon must be {EPSILON}": getattr(model.norm, "eps", EPSILON) == EPSILON,
        "act_layer: a looped model has an exact GELU": all(
            isinstance(act, nn.GELU) and getattr(act, "approximate", "none") == "none" for act in activations
        ),
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise ValueError(broken[0])


def _shape(model: nn.Module) -> dict:
    """What both kinds of models call the same."""
    return dict(
        img_size=tuple(model.patch_embed.img_size),
        patch_size=model.patch_embed.patch_size[0],
        in_chans=model.patch_embed.proj.in_channels,
        num_classes=model.num_classes,
        global_pool=model.global_pool,
        embed_dim=model.embed_dim,
    )


def _loaded(model: nn.Module, weights: StateDict) -> nn.Module:
    """The model with weights, in their type, in eval mode."""
    dtype = next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
    model.to(dtype).load_state_dict(weights)
    return model.eval()
