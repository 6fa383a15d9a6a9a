"""Imports that are private in timm, or missing in a version from 1.0.20 on."""

import argparse
from pathlib import Path
from typing import Any

import torch
from timm.models import _hub
from timm.models._features import feature_take_indices
from timm.models.deit import _cfg as deit_cfg

SAVES_OPTIONS = hasattr(_hub, "get_model_args")
"""Whether a saved model names its options; timm < 1.0.31 does not."""

try:
    from timm.models._input import update_model_input_size
except ImportError:  # timm < 1.0.31 keeps no record of a model's input size

    def update_model_input_size(model, img_size, **model_args) -> None:
        """Nothing to do."""


try:
    from timm.utils.checkpoint_saver import load_checkpoint_metadata
except ImportError:  # timm < 1.0.31, whose checkpoints hold the trainer's Namespace

    def load_checkpoint_metadata(checkpoint_path: str | Path) -> dict[str, Any]:
        """The metadata of a checkpoint of timm's trainer, without reading its tensors."""
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(checkpoint_path, map_location="cpu", weights_only=True, mmap=True)


__all__ = ["SAVES_OPTIONS", "deit_cfg", "feature_take_indices", "load_checkpoint_metadata", "update_model_input_size"]
