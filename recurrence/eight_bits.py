"""Weights in eight bits, by torch's dynamic quantisation: linear layers only, on a CPU.

Embeddings, norms, level signals and convolutions stay in float32. A stored block is converted once.
"""

import io
import warnings

import torch
from torch import nn


def quantise_(model: nn.Module) -> None:
    """Quantises the weights of a model's linear layers in place; activations are quantised as they come."""
    from torch.ao.quantization import quantize_dynamic  # not above: torch is to drop it, and training needs none

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch announces that it will drop its own tensor types
        quantize_dynamic(model, {nn.Linear}, inplace=True)


def megabytes(model: nn.Module) -> float:
    """Size of the saved state dict, in MB (10^6 bytes)."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return len(file.getvalue()) / 1e6
