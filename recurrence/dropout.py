"""Dropout whose decisions cost a CPU little: four of them from each 64-bit random number.

PyTorch draws one number, and writes one float, for each element there, which takes as long as an eighth of a training
step. Here a mask of bytes is compared from 16-bit parts of whole random numbers of the same generator, so that a seed
repeats a step and a resumed run goes on as before. A GPU, the compiler and torch.func get PyTorch's own dropout.

Differs from PyTorch's: the rate is taken in steps of 1 / 65,536, and what stays is scaled by the rate that results.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from recurrence.linear import runs_eagerly

STEPS = 1 << 16

_masked = torch.ops.aten.native_dropout_backward


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Sets elements to 0 at the rate, in training, and scales the others by 1 / (1 - rate): (...) -> the same."""
    if not training or rate == 0:
        return x
    dropped = round(rate * STEPS)
    if dropped == STEPS or not runs_eagerly(x) or x.device.type != "cpu":
        return F.dropout(x, rate)
    return _Dropout.apply(x, kept(x.shape, dropped), STEPS / (STEPS - dropped))


def kept(shape: Sequence[int], dropped: int) -> Tensor:
    """A mask of that shape, on the CPU, each element of which is False with a chance of dropped / STEPS, below 1."""
    size = math.prod(shape)
    numbers = torch.empty(-(-size // 4), dtype=torch.int64, device="cpu").random_(-(1 << 63), None)
    return (numbers.view(torch.int16)[:size] >= dropped - STEPS // 2).view(shape)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, keep, scale):
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return _masked(x, keep, scale)

    @staticmethod
    def backward(ctx, grad):
        (keep,) = ctx.saved_tensors
        return _masked(grad, keep, ctx.scale), None, None
