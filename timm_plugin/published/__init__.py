"""Converts the weights of the published implementations to timm models and back (see :mod:`recurrence.weights.names`).

Source: the published code of RingFormer (arXiv:2502.13181) and of SReT (arXiv:2111.05297).
"""

import re
from typing import Any

import timm
import torch
from torch import Tensor

from recurrence.weights.names import StateDict, exported, to_ours
from timm_plugin._model import ImageModel
from timm_plugin.owf_vit import OneWideViT
from timm_plugin.plain_vit import PlainViT
from timm_plugin.published import ringformer, sret
from timm_plugin.ringformer_vit import RingFormerViT
from timm_plugin.sret import SReT
from timm_plugin.uit import UniversalViT

# Keys of tables that are computed, not trained: their levels; our positions, depths, order and permutations.
FIXED = re.compile(
    r"transformer\.encoder\.level_embed\.level_embed|pos_embed|depth_embed|(stages\.\d+\.)?loop\.noted|.*\.slices\.permutation"
)

# Options without weights, of which the published code has the default of the family alone.
WITHOUT_WEIGHTS = ("norm_eps", "permuted_runs")

# By system: the name and class of the timm model, its arguments, and the table of its weights.
RINGFORMER = ringformer.arguments, ringformer.pieces
SYSTEMS = {
    "ringformer_vit": ("ringformer_vit", RingFormerViT, *RINGFORMER),
    "uit": ("uit", UniversalViT, *RINGFORMER),
    "owf_vit": ("owf_vit", OneWideViT, *RINGFORMER),
    "vit": ("plain_vit", PlainViT, *RINGFORMER),
    "sret": ("sret_t", SReT, sret.arguments, sret.pieces),
}


def from_published(system: str, state_dict: dict[str, Any], config: dict[str, Any]) -> ImageModel:
    """Builds the timm model of a published checkpoint.

    Args:
        system: "ringformer_vit", "uit", "owf_vit", "vit" (all of RingFormer's experiments) or "sret".
        state_dict: published key names, perhaps nested and with the prefix of a compiled model.
        config: the published configuration: for RingFormer's systems img, patch, hidden, mlp, heads, classes,
            num_levels or num_layers (the other may be absent or None), rank_attn, level_encoding; for SReT image_size,
            base_dims, depth, recursive_num, heads, groups1 and groups2 (absent without slices), mlp_ratio,
            np_mlp_ratio, num_classes, drop_path_rate.

    Returns:
        The model in eval mode, in the dtype of the weights.

    Raises:
        ValueError: if the system is unknown, the configuration gives no depth, a key is unmapped or missing, a
            tensor has another size, or tensors that are shared differ.
    """
    if system not in SYSTEMS:
        raise ValueError(f"system={system!r}: must be one of {sorted(SYSTEMS)}")
    name, _, arguments, pieces = SYSTEMS[system]
    state_dict = unnested(state_dict)
    dtypes = [tensor.dtype for tensor in state_dict.values() if isinstance(tensor, Tensor)]
    dtype = next((dtype for dtype in dtypes if dtype.is_floating_point), None)
    if dtype is None:
        raise ValueError(
            f"state_dict: has {len(dtypes)} tensors, none of floating-point numbers: must hold the weights"
        )
    model = _in_type(dtype, name, arguments(system, config))
    own = to_ours(state_dict, pieces(system, model), model.state_dict(), FIXED.fullmatch)
    model.load_state_dict({**model.state_dict(), **own})
    return model.eval()


def to_published(system: str, model: ImageModel) -> StateDict:
    """The inverse of :func:`from_published`: the model's weights under the published keys, without fixed tables.

    Raises:
        ValueError: the system is unknown, or its published code has no such model, order or parameter, or another one.
    """
    if system not in SYSTEMS:
        raise ValueError(f"system={system!r}: must be one of {sorted(SYSTEMS)}")
    _, kind, _, table = SYSTEMS[system]
    if not isinstance(model, kind):
        raise ValueError(f"{type(model).__name__}: the published code of {system} is a {kind.__name__}")
    order = getattr(model.config, "order", None)
    if order is not None:
        raise ValueError(f"order={tuple(order)}: the published code has no such order")
    given = {name: getattr(model.config, name) for name in WITHOUT_WEIGHTS if hasattr(model.config, name)}
    for name, value in {"global_pool": model.global_pool, **given}.items():
        if value != (published := getattr(type(model.config), name)):
            raise ValueError(f"{name}={value!r}: must be {published!r}, as in the published code of {system}")
    return exported(system, model.state_dict(), list(table(system, model)), FIXED.fullmatch)


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
