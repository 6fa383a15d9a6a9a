"""Registers families of models with timm, and builds their models with timm's own builder."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

from timm_plugin._compat import deit_cfg
from timm_plugin._config import ImageConfig
from timm_plugin._model import checkpoint_filter_fn
from timm_plugin._removed import drop_removed
from timm_plugin.elastic import DEPTH_OPTIONS


def register_family(
    module: str,
    family: type[ImageConfig],
    cfg: dict[str, Any],
    presets: dict[str, tuple[str, dict[str, Any]]],
    shipped: dict[str, dict] | None = None,
) -> None:
    """Registers one model for each preset, as a function of a module.

    Args:
        module: name of the module, which gets the functions and timm's `default_cfgs`.
        family: the configuration of the models.
        cfg: their pretrained configuration, see :func:`image_cfg`.
        presets: by name, the row of the paper's table that it reproduces (with the classes that its parameters are
            counted with, if not 1,000), and the options that differ from the family's defaults.
        shipped: by name and tag, what differs in the configuration of weights that the package ships.
    """
    file: Any = sys.modules[module]
    tagged = {name: {**cfg, **about} for name, about in (shipped or {}).items()}
    untagged = dict.fromkeys(presets.keys() - {name.partition(".")[0] for name in tagged}, cfg)
    cfgs = generate_default_cfgs({**untagged, **tagged})
    file.default_cfgs = {**getattr(file, "default_cfgs", {}), **{name: cfgs[name] for name in presets}}
    for name, (about, options) in presets.items():
        entry: Any = partial(create, family, name, options)
        entry.__name__, entry.__qualname__, entry.__module__, entry.__doc__ = name, name, module, about
        setattr(file, name, register_model(entry))


def create(
    family: type[ImageConfig],
    variant: str,
    options: dict[str, Any],
    /,
    pretrained: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **kwargs: Any,
) -> nn.Module:
    """Builds a registered model.

    Args:
        family: its configuration; gets the arguments that timm's builder does not take.
        variant: the registered name.
        options: of the preset, where the user gives none.
        pretrained: load the weights of the name's tag.
        device, dtype: of the parameters.
        **kwargs: options of the model, and arguments of timm's builder.

    Raises:
        TypeError: for an argument that the family does not have.
        ValueError: for dynamic image sizes, for options of depth beside features_only, for an argument that was
            removed, or if a value breaks its rule.
    """
    for name in ("dynamic_img_size", "dynamic_img_pad"):
        if kwargs.pop(name, False):
            raise ValueError(f"{name}=True: {variant} takes images of the size that img_size gives")
    saved = kwargs.get("pretrained_model_args") or {}  # of a saved model, which timm has added to the given ones
    drop_removed(kwargs, saved)
    if kwargs.get("features_only"):
        options = {name: value for name, value in options.items() if name not in DEPTH_OPTIONS}
        for name in kwargs.keys() & DEPTH_OPTIONS:
            value = kwargs.pop(name)
            if value not in (DEPTH_OPTIONS[name], saved.get(name)):
                rule = "must not be given with features_only=True, which runs all passes"
                raise ValueError(f"{name}={value}: {rule}")
    options = family.merged(options, kwargs)
    stages = {**options, **kwargs}.get("depths")  # of a pyramid, whose features are one of each
    indices = tuple(range(len(stages))) if isinstance(stages, Sequence) else family.model.out_indices
    with nullcontext() if device is None else torch.device(device):
        model = build_model_with_cfg(
            partial(family.model, family),
            variant,
            pretrained,
            **options,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg=dict(out_indices=indices, feature_cls="getter"),
            **kwargs,
        )
    return model if dtype is None else model.to(dtype)


# A pretrained configuration in timm's form, by default with ImageNet's mean and std and 224 pixels.
image_cfg = partial(deit_cfg, license=None)
# For the models of the SReT paper.
sret_cfg = partial(image_cfg, crop_pct=0.9, paper_name="Sliced Recursive Transformer", paper_ids="arXiv:2111.05297")
SRET_URL = "https://github.com/szq0214/SReT"
