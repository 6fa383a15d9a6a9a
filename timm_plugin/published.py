"""Converts the weights of the published implementations to timm models and back (see :mod:`recurrence.weights.names`).

Source: the published code of RingFormer (arXiv:2502.13181) and of SReT (arXiv:2111.05297).
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import timm
import torch
from torch import Tensor

from recurrence.loop import Loop
from recurrence.weights.names import Piece, StateDict, to_ours, to_theirs
from timm_plugin._model import ImageModel
from timm_plugin.conversion import BLOCK

# Keys of tables that are computed, not trained: their levels; our positions, depths, order and permutations.
FIXED = re.compile(
    r"transformer\.encoder\.level_embed\.level_embed|pos_embed|depth_embed|loop\.noted|.*\.slices\.permutation"
)


def from_published(
    system: str, state_dict: dict[str, Any], config: dict[str, Any], permutations: Sequence[Tensor] = ()
) -> ImageModel:
    """Builds the timm model of a published checkpoint.

    Args:
        system: "ringformer_vit", "uit", "owf_vit", "vit" (all of RingFormer's experiments) or "sret".
        state_dict: published key names, perhaps nested and with the prefix of a compiled model.
        config: the published configuration: for RingFormer's systems img, patch, hidden, mlp, heads, classes,
            num_levels or num_layers, rank_attn, level_encoding; for SReT image_size, base_dims, depth, recursive_num,
            heads, groups1 and groups2 (absent without slices), mlp_ratio, np_mlp_ratio, num_classes, drop_path_rate.
        permutations: for SReT, one (N,) permutation for each permuted pass, in order; () keeps the model's.

    Returns:
        The model in eval mode, in the dtype of the weights.

    Raises:
        ValueError: if the system is unknown, a key is unmapped or missing, or tensors that are shared differ.
    """
    if system not in SYSTEMS:
        raise ValueError(f"system={system!r}: must be one of {sorted(SYSTEMS)}")
    name, arguments, pieces = SYSTEMS[system]
    state_dict = unnested(state_dict)
    dtype = next(tensor.dtype for tensor in state_dict.values() if tensor.is_floating_point())
    model = _in_type(dtype, name, arguments(system, config))
    own = to_ours(state_dict, pieces(system, model), model.state_dict(), FIXED.fullmatch)
    model.load_state_dict({**model.state_dict(), **own})
    _set_permutations(model, permutations)
    return model.eval()


def to_published(system: str, model: ImageModel) -> StateDict:
    """The inverse of :func:`from_published`: the model's weights under the published keys, without fixed tables."""
    return to_theirs(model.state_dict(), SYSTEMS[system][2](system, model))


def unnested(state_dict: dict[str, Any]) -> StateDict:
    """The weights of a training checkpoint, without the prefixes of compiled or distributed models."""
    for key in ("model", "model_state_dict", "state_dict"):
        state_dict = state_dict.get(key, state_dict)
    return {re.sub(r"^(_orig_mod\.|module\.)+", "", key): tensor for key, tensor in state_dict.items()}


def _in_type(dtype: torch.dtype, name: str, arguments: dict[str, Any]) -> ImageModel:
    """The model in this dtype, in which its fixed tables are computed, too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return timm.create_model(name, **arguments)
    finally:
        torch.set_default_dtype(before)


def _set_permutations(model: ImageModel, permutations: Sequence[Tensor]) -> None:
    slots = [name for name, _ in model.named_buffers() if name.endswith("slices.permutation")]
    if permutations and len(permutations) != len(slots):
        raise ValueError(f"permutations: {len(permutations)} given, the model has {len(slots)} permuted passes")
    for name, permutation in zip(slots, permutations):
        model.get_buffer(name).copy_(permutation)


# RingFormer and its baselines


def _ringformer_arguments(system: str, config: dict[str, Any]) -> dict[str, Any]:
    arguments = dict(
        img_size=config["img"],
        patch_size=config["patch"],
        embed_dim=config["hidden"],
        mlp_ratio=config["mlp"] / config["hidden"],
        num_heads=config["heads"],
        num_classes=config["classes"],
        depth=config.get("num_levels", config["num_layers"]) if system in SHARED else config["num_layers"],
    )
    if system == "ringformer_vit":
        arguments["signal_rank_divisor"] = config["hidden"] // config["rank_attn"]
    if system == "uit":
        arguments["level_signal"] = "static" if config["level_encoding"] == "static" else "learned"
    return arguments


def _ringformer_pieces(system: str, model: ImageModel) -> Iterator[Piece]:
    yield Piece("transformer.embeddings.cls_token", "cls_token")
    if system != "uit":
        yield Piece("transformer.embeddings.position_embeddings.pos_embed", "pos_embed")
    elif model.level_embed is not None:
        for level in range(model.loop.passes):
            rows = (level, level + 1, model.loop.passes)
            yield Piece("transformer.encoder.level_embed.level_embed.weight", "level_embed", rows, rows)
    yield from _both("transformer.embeddings.patch_embeddings", "patch_embed.proj")
    yield from _both("transformer.encoder.encoder_norm", "norm")
    yield from _both("head", "head")
    for index, block in enumerate(model.loop.blocks):
        yield from _ringformer_block(system, index, block)
    for level in range(model.loop.passes if system == "ringformer_vit" else 0):
        yield from _ringformer_level(level)


def _ringformer_block(system: str, index: int, block: torch.nn.Module) -> Iterator[Piece]:
    theirs, ours = f"transformer.encoder.{LAYERS[system]}.{index}", f"loop.blocks.{index}"
    mlp, mlp_norm = f"{theirs}.ffn", f"{theirs}.{MLP_NORM[system]}"
    if block.self_attn is None:  # the MLP of One Wide FFN
        mlp, mlp_norm = "transformer.encoder.ff_block.ffn", "transformer.encoder.ff_block.ff_norm"
    else:
        for kind in ("weight", "bias"):
            for row, name in enumerate(("query", "key", "value")):
                yield Piece(f"{theirs}.attn.{name}.{kind}", f"{ours}.self_attn.qkv.{kind}", our_rows=(row, row + 1, 3))
        yield from _both(f"{theirs}.attn.out", f"{ours}.self_attn.out")
    if block.ffn is not None:
        yield from _both(f"{mlp}.fc1", f"{ours}.ffn.up")
        yield from _both(f"{mlp}.fc2", f"{ours}.ffn.down")
    if not hasattr(block, "norms"):  # each pass has its own
        return
    norms = []
    if block.self_attn is not None:
        norms.append(f"{theirs}.attention_norm")
    if block.ffn is not None:
        norms.append(mlp_norm)
    for number, norm in enumerate(norms):
        yield from _both(norm, f"{ours}.norms.{number}")


def _ringformer_level(level: int) -> Iterator[Piece]:
    ours = f"loop.own.{level}"
    for index, kind in enumerate(("ATTN", "FF")):
        yield from _both(f"transformer.encoder.{kind}_layer_norms.{level}", f"{ours}.norms.{index}")
    for number, factor in (("01", "up"), ("02", "down")):
        for row, name in enumerate("QKV"):
            key = f"transformer.encoder.ATTN_lev_embed_{name}_{number}"
            yield Piece(key, f"{ours}.qkv_signal.{factor}", our_rows=(row, row + 1, 3), level=level)
        yield Piece(f"transformer.encoder.lev_embed_FF_{number}", f"{ours}.ffn_signal.{factor}", level=level)


def _both(theirs: str, ours: str) -> Iterator[Piece]:
    for kind in ("weight", "bias"):
        yield Piece(f"{theirs}.{kind}", f"{ours}.{kind}")


SHARED = ("ringformer_vit", "uit")
LAYERS = {"ringformer_vit": "layers", "uit": "layers", "owf_vit": "attn_blocks", "vit": "layer"}
MLP_NORM = {"ringformer_vit": "", "uit": "ff_norm", "owf_vit": "", "vit": "ffn_norm"}


# SReT


def _sret_arguments(system: str, config: dict[str, Any]) -> dict[str, Any]:
    depth, stored = config["depth"], config["recursive_num"]
    loops = depth[0] // stored[0]
    if any(passes != loops * blocks for passes, blocks in zip(depth, stored)):
        raise ValueError(f"depth={depth}, recursive_num={stored}: every block must run equally often")
    sliced = "groups1" in config
    if sliced and loops != 2:
        raise ValueError(
            f"groups1, groups2: {loops} runs of a block; the published code takes every second run of a stage for a "
            "second run of its block, which it is only where each runs twice; without slices any number is read"
        )
    groups = zip(config["groups1"], config["groups2"]) if sliced else ((1,) * loops for _ in depth)
    return dict(
        img_size=config["image_size"],
        embed_dim=config["base_dims"][0] * config["heads"][0],
        num_heads=tuple(config["heads"]),
        depths=tuple(config["recursive_num"]),
        loops=loops,
        groups=tuple(groups),
        mlp_ratio=config["mlp_ratio"],
        nll_ratio=config["np_mlp_ratio"],
        num_classes=config["num_classes"],
        drop_path_rate=config["drop_path_rate"],
        drop_path_placement="published",
    )


SRET_BLOCK = {
    **BLOCK,
    **{"coefficient1": "residuals.0.identity", "coefficient2": "residuals.0.branch"},
    **{"coefficient3": "residuals.1.identity", "coefficient4": "residuals.1.branch"},
}
SRET_NLL = {
    **{"norm1": "norm", "mlp.fc1": "up", "mlp.fc2": "down"},
    **{"coefficient1": "residual.identity", "coefficient2": "residual.branch"},
}


def sret_names(loops: Sequence[Loop]) -> Iterator[Piece]:
    """The key names of the published code. It lists a block once per run, and the projection (NLL) after each run.

    Args:
        loops: the loops of the stages.
    """
    for stage, loop in enumerate(loops):
        if stage:
            for kind in ("weight", "bias"):
                yield Piece(f"pools.{stage - 1}.conv.{kind}", f"stages.{stage}.pool.{kind}")
        for index, which in enumerate(loop.order):
            layers = f"transformers.{stage}.blocks"
            yield from _sret_layer(f"{layers}.{2 * index}", f"stages.{stage}.loop.blocks.{which}", SRET_BLOCK)
            yield from _sret_layer(f"{layers}.{2 * index + 1}", f"stages.{stage}.loop.own.{index}.projection", SRET_NLL)


def _sret_layer(theirs: str, ours: str, table: dict[str, str]) -> Iterator[Piece]:
    for name, own in table.items():
        if name.startswith("coefficient"):
            yield Piece(f"{theirs}.{name}.bias", f"{ours}.{own}")
        else:
            yield Piece(f"{theirs}.{name}.weight", f"{ours}.{own}.weight")
            yield Piece(f"{theirs}.{name}.bias", f"{ours}.{own}.bias")


def _sret_pieces(system: str, model: ImageModel) -> Iterator[Piece]:
    yield from sret_names(model.loops())
    for name in model.state_dict():
        if name.split(".")[0] in ("patch_embed", "pos_embed", "cls_token", "norm", "head"):
            yield Piece(name, name)


SYSTEMS = {
    "ringformer_vit": ("ringformer_vit", _ringformer_arguments, _ringformer_pieces),
    "uit": ("uit", _ringformer_arguments, _ringformer_pieces),
    "owf_vit": ("owf_vit", _ringformer_arguments, _ringformer_pieces),
    "vit": ("plain_vit", _ringformer_arguments, _ringformer_pieces),
    "sret": ("sret_t", _sret_arguments, _sret_pieces),
}
