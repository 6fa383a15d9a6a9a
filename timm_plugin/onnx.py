"""Image models as files of ONNX, with the names of their classes and the numbers of their preprocessing."""

import json
from typing import Any

import onnx
import torch
from timm.data import resolve_data_config
from torch import nn

from recurrence.weights.onnx import export as export_module


def export(model: nn.Module, int8: bool = False) -> onnx.ModelProto:
    """The graph from `images` (B, channels, height, width), preprocessed, to `logits` (B, classes), for any batch.

    Its metadata are JSON, see :func:`about`.

    Args:
        model: as :func:`timm_plugin.checkpoints.load` returns it. It is converted to float32 in place, and left in
            evaluation mode.
        int8: whether the weights of matrix products and convolutions are stored in eight bits.

    Raises:
        ValueError: SReT permutes at random.
    """
    if getattr(getattr(model, "config", None), "inference_permutation", None) == "random":
        raise ValueError("inference_permutation='random': a file of ONNX draws nothing; must be 'fixed'")
    known = about(model)
    made = export_module(
        model.float(),
        [torch.zeros(2, *known["input_size"])],
        int8,
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    onnx.helper.set_model_props(made, {name: json.dumps(value, ensure_ascii=False) for name, value in known.items()})
    return made


def about(model: nn.Module) -> dict[str, Any]:
    """The architecture, the names of the classes in the order of the logits, None if unknown, and the preprocessing.

    That is timm's: input_size, interpolation, mean, std, crop_pct, crop_mode.
    """
    config = model.pretrained_cfg
    side = getattr(getattr(model, "patch_embed", None), "img_size", None)  # None: takes any, as timm's ResNets do
    size = (model.in_chans, *side) if side else config["input_size"]
    preprocessing = resolve_data_config(dict(input_size=size), model=model)
    return dict(architecture=config.get("architecture"), label_names=config.get("label_names"), **preprocessing)
