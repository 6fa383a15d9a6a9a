"""Where one computation may replace another: plain layers and tensors, not those that torch traces or transforms."""

import torch
from torch import Tensor, nn

from recurrence.private_torch import has_hooks, is_transformed

HALF_PRECISION = (torch.float16, torch.bfloat16)
PLAIN = (Tensor, nn.Parameter)


def is_plain(layer: nn.Module, kind: type[nn.Module] = nn.Linear) -> bool:
    """Whether the layer may be computed from its weight, without calling the module.

    Not if it or its weight has another class (LoRA, quantisation), or if it has hooks or its own forward method.
    """
    return (
        type(layer) is kind and type(layer.weight) in PLAIN and not has_hooks(layer) and "forward" not in layer.__dict__
    )


def runs_eagerly(*tensors: Tensor) -> bool:
    """Whether these are plain tensors, outside tracing, compilation and torch.func."""
    return (
        all(type(tensor) in PLAIN for tensor in tensors)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not is_transformed()
    )


def product_dtype(like: Tensor) -> torch.dtype:
    """The dtype of products of this tensor: its own, or autocast's."""
    device = like.device.type
    casts = like.dtype != torch.float64 and device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if casts else like.dtype
