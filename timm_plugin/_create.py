"""Builds the registered models with timm's own builder."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg
from torch import nn

from recurrence.order import block_count
from timm_plugin._model import ImageModel, checkpoint_filter_fn
from timm_plugin._types import fits
from timm_plugin._vit import LoopedVisionTransformer
from timm_plugin._vit_config import OF_ORDERS
from timm_plugin.elastic import ElasticConfig

FEATURE_KINDS = ("getter", "hook", "fx")


def create(
    build: type[ImageModel],
    variant: str,
    pretrained: bool,
    preset: dict[str, Any],
    /,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **kwargs: Any,
) -> nn.Module:
    """Builds a registered model; every entry function calls this.

    Args:
        build: the model's class; gets the arguments that timm's builder does not take.
        variant: the registered name.
        pretrained: load the weights of the name's tag.
        preset: arguments of the model where the user gives none.
        device, dtype: of the parameters.
        **kwargs: arguments of the model and of timm's builder.

    Raises:
        ValueError: for dynamic image sizes, for an exit_threshold, which older versions had, for a feature_cls that
            needs a module per depth where all depths are in one, for options of depth beside features_only, or if a
            value breaks its rule.
    """
    for name in ("dynamic_img_size", "dynamic_img_pad"):
        if kwargs.pop(name, False):
            raise ValueError(f"{name}=True: {variant} takes images of the size that img_size gives")
    threshold = kwargs.pop("exit_threshold", 0.0)  # arguments saved by older versions have 0
    if threshold:
        raise ValueError(f"exit_threshold={threshold}: was removed, as it never saved time; run fewer passes instead")
    if kwargs.get("features_only"):
        check_features(kwargs)
        preset = {name: value for name, value in preset.items() if name not in DEPTH_OPTIONS}
    feature_cls = kwargs.get("feature_cls", "getter")
    if feature_cls not in FEATURE_KINDS and issubclass(build, LoopedVisionTransformer):
        raise ValueError(f"feature_cls={feature_cls!r}: must be one of {FEATURE_KINDS}, as one module has all depths")
    stages = kwargs.get("depths", preset.get("depths"))  # of a pyramid, whose features are one of each
    indices = tuple(range(len(stages))) if isinstance(stages, Sequence) else build.out_indices
    with nullcontext() if device is None else torch.device(device):
        model = build_model_with_cfg(
            build,
            variant,
            pretrained,
            **with_order(preset, kwargs),
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg=dict(out_indices=indices, feature_cls="getter"),
            **kwargs,
        )
    return model if dtype is None else model.to(dtype)


def with_order(preset: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the preset that the given ones leave; an order replaces those that assign layers to passes."""
    left = {name: value for name, value in preset.items() if name not in given}
    order = given.get("order")
    if order is None:
        return left
    left = {name: value for name, value in left.items() if name not in OF_ORDERS}
    if "depth" not in given and fits(order, Sequence[int]):
        left["depth"] = max(1, block_count(order))
    return left


# Options of the passes that training draws or supervises.
DEPTH_OPTIONS = {field.name: field.default for field in fields(ElasticConfig)}


def check_features(options: dict[str, Any]) -> None:
    """Raises ValueError for options that have no meaning for a model whose output is the maps of chosen depths."""
    for name, default in DEPTH_OPTIONS.items():
        if options.get(name, default) != default:
            raise ValueError(
                f"{name}={options[name]}: must not be given with features_only=True, which runs all passes"
            )


def image_cfg(**kwargs: Any) -> dict[str, Any]:
    """A pretrained configuration in timm's form, by default with ImageNet's mean and std and 224 pixels."""
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": None,
        "interpolation": "bicubic",
        "fixed_input_size": True,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "classifier": "head",
        **kwargs,
    }


# For the models of the SReT paper.
sret_cfg = partial(image_cfg, crop_pct=0.9, paper_name="Sliced Recursive Transformer", paper_ids="arXiv:2111.05297")
SRET_URL = "https://github.com/szq0214/SReT"
