"""Registering a family of models with fairseq, and what its presets have in common."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from fairseq import utils
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY, register_model, register_model_architecture
from torch import Tensor

from fairseq_plugin.options import SIDES, ConfiguredModel, like


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """fairseq's activation of that name, except that gelu is torch's, which does not cast to float32."""
    return F.gelu if name == "gelu" else utils.get_activation_fn(name)


def register_family(name: str, model: type[ConfiguredModel], presets: dict[str, dict], **common: Any) -> None:
    """Registers a model, and one architecture per preset.

    Args:
        name: name of the family.
        model: its class.
        presets: for each architecture, the options that differ from their defaults.
        **common: options that all presets share.

    Raises:
        ValueError: if a name is taken, as fairseq would silently keep the other model, or if a preset has an option
            that the family lacks.
    """
    taken = {name, *presets} & {*MODEL_REGISTRY, *ARCH_MODEL_REGISTRY}
    if taken:
        raise ValueError(f"{sorted(taken)[0]}: another model is registered under that name")
    known = model.options.known().keys()
    for arch, preset in presets.items():
        for key in sorted({*common, *preset} - known):
            raise ValueError(f"{arch}: {key}: must be an option of {model.options.__name__}")
    register_model(name)(model)
    for arch, preset in presets.items():
        register_model_architecture(name, arch)(partial(model.options.fill, preset={**common, **preset}))


def size(width: int, ffn_width: int, heads: int, layers: int, **more: Any) -> dict:
    """Options for an encoder and a decoder of the same size.

    As in fairseq's `transformer`, the decoder's widths follow the encoder's: `--encoder-embed-dim 256` sets both.
    """
    values = dict(embed_dim=width, ffn_embed_dim=ffn_width, attention_heads=heads, layers=layers, **more)
    of_both = {f"{side}_{name}": value for side in SIDES for name, value in values.items()}
    return of_both | {f"decoder_{name}": like(f"encoder_{name}") for name in ("embed_dim", "ffn_embed_dim")}
