"""Builds the registered models with timm's own builder."""

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from timm.models import build_model_with_cfg
from torch import nn

from timm_plugin._compat import deit_cfg
from timm_plugin._config import DEPTH_OPTIONS
from timm_plugin._model import ImageModel, checkpoint_filter_fn, forget_class_names
from timm_plugin._removed import drop_removed

logger = logging.getLogger(__name__)
SOURCES = {"file", "url", "hf_hub_id", "state_dict"}  # of weights, in a pretrained configuration
image_cfg = partial(deit_cfg, license=None)
"""A pretrained configuration in timm's form, by default with ImageNet's mean and std and 224 pixels."""


def create(
    model: type[ImageModel],
    variant: str,
    pretrained: bool,
    preset: dict[str, Any],
    given: dict[str, Any],
    out_indices: int = 3,
) -> nn.Module:
    """Builds a registered model.

    Args:
        model: its class; gets the arguments that timm's builder does not take.
        variant: the registered name.
        pretrained: load the weights of the name's tag.
        preset: the options that the name stands for, where the user gives none.
        given: options of the model, `device` and `dtype` of its parameters, and arguments of timm's builder.
        out_indices: how many of the last features `features_only=True` returns, unless the user says which.

    Raises:
        TypeError: for an argument that the family does not have.
        ValueError: for dynamic image sizes, for options of depth beside features_only, for an argument that was
            removed, or if a value breaks its rule.
    """
    given = dict(given)
    for name in ("dynamic_img_size", "dynamic_img_pad"):
        if given.pop(name, False):
            raise ValueError(f"{name}=True: must not be given, because {variant} takes images of one size, img_size")
    saved = given.get("pretrained_model_args") or {}  # of a saved model, which timm has added to the given ones
    drop_removed(given, saved)
    drop_training_depths(given, saved)
    if given.get("features_only"):
        preset = {name: value for name, value in preset.items() if name not in DEPTH_OPTIONS}
        for name in given.keys() & DEPTH_OPTIONS:
            value = given.pop(name)
            if value not in (DEPTH_OPTIONS[name], saved.get(name)):
                rule = "must not be given with features_only=True, which runs all passes"
                raise ValueError(f"{name}={value}: {rule}")
    device, dtype = given.pop("device", None), given.pop("dtype", None)
    with nullcontext() if device is None else torch.device(device):
        built = build_model_with_cfg(
            model,
            variant,
            pretrained,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg=dict(out_indices=out_indices, feature_cls="getter"),
            **{**preset, **given},
        )
    overlay = given.get("pretrained_cfg_overlay") or {}
    others = SOURCES & overlay.keys() and "label_names" not in overlay  # other weights than those of the name's tag
    names = built.pretrained_cfg.get("label_names") or ()
    if others or not pretrained or len(names) != getattr(built, "num_classes", None):
        forget_class_names(built)
    return built if dtype is None else built.to(dtype)


def drop_training_depths(given: dict[str, Any], saved: Mapping[str, Any]) -> None:
    """Takes the options of elastic depth that a saved model has brought out of those of a model of another depth.

    They only steered its training, and may not fit the other depth; timm lets nobody set them to None.
    """
    if all(given.get(name) == saved.get(name) for name in ("depth", "loops", "order")):
        return
    for name in DEPTH_OPTIONS.keys() & saved.keys() & given.keys():
        if given[name] == saved[name]:
            del given[name]
            logger.warning("%s=%s: left out, as it is that of the saved model at another depth", name, saved[name])
