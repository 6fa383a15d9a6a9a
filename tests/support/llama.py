"""A small LLaMA stack of Intra-Layer Recurrence, and random states for it."""

import torch
from torch import nn

from recurrence.block import Shape
from recurrence.causal import CausalStack
from recurrence.papers.ilr import llama_layers
from recurrence.position import attention_positions

SHAPE = Shape(12, 20, 2, norm_eps=1e-6)


def random_states(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random float64 states of this shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def llama_stack(encoding: str = "none", order=(0, 0, 1, 2, 2), **values) -> CausalStack:
    """A float64 stack of `SHAPE` in eval mode; encoding: one of POSITIONS."""
    torch.manual_seed(0)
    loop = llama_layers(SHAPE, order, relative=encoding == "relative", **values)
    positions = attention_positions(encoding, SHAPE.width, SHAPE.heads, causal=True)
    return CausalStack(loop, positions, nn.RMSNorm(12)).double().eval()
