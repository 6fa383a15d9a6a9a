"""The operators of :mod:`recurrence.scan_step`: products of attention, LayerNorm, dropout with a given mask, heads."""

import torch
from torch import Tensor

from recurrence.linear import linear as fast_linear
from recurrence.private_torch import masked

_layer_norm_backward = torch.ops.aten.native_layer_norm_backward


# Matrix products, named as in BLAS: n for a factor as it is, t for a transposed one. With a single query, a matrix
# product and the copies that it makes cost more than the plain sums.


def matmul_nt(a: Tensor, b: Tensor) -> Tensor:
    """a b^T: (..., M, D), (..., S, D) -> (..., M, S)."""
    return (a * b).sum(-1).unsqueeze(-2) if a.size(-2) == 1 else a @ b.transpose(-1, -2)


def matmul_nn(a: Tensor, b: Tensor) -> Tensor:
    """a b: (..., M, S), (..., S, D) -> (..., M, D)."""
    return (a.transpose(-1, -2) * b).sum(-2, keepdim=True) if a.size(-2) == 1 else a @ b


def matmul_tn(a: Tensor, b: Tensor) -> Tensor:
    """a^T b: (..., M, S), (..., M, D) -> (..., S, D)."""
    a = a.transpose(-1, -2)
    return a * b if b.size(-2) == 1 else a @ b


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T in the dtype of the weight: (..., in), (out, in) -> (..., out)."""
    return fast_linear(x.to(weight.dtype), weight)


def linear_weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Gradient of a weight, summed over all tokens: (..., out), (..., in) -> (out, in)."""
    grad = grad.flatten(0, -2)
    return fast_linear(grad.t(), x.to(grad.dtype).flatten(0, -2).t())


def norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm without bias.

    Args:
        x: (..., C).
        weight: (C,).
        eps: added to the variance.

    Returns:
        The output (..., C), and the mean and the inverse standard deviation of each token, (..., 1).
    """
    return torch.native_layer_norm(x, weight.shape, weight, None, eps)


def norm_backward(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> Tensor:
    """Gradient of the input of :func:`norm`, (..., C), from that of its output, (..., C), and what it returned."""
    needs = [True, False, False]
    return _layer_norm_backward(grad.to(x.dtype), x, weight.shape, mean, rstd, weight, None, needs)[0]


def norm_weight_gradient(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> Tensor:
    """Gradient of the weight of :func:`norm`, (C,), summed over all tokens; arguments as :func:`norm_backward`."""
    needs = [False, True, False]
    return _layer_norm_backward(grad.to(x.dtype), x, weight.shape, mean, rstd, weight, None, needs)[1]


def drop(x: Tensor, mask: Tensor | None, rate: float) -> Tensor:
    """Dropout, or its backward pass, with a given mask: (...) -> the same.

    Args:
        x: the values or, in the backward pass, the gradient.
        mask: True where x is kept; None keeps everything.
        rate: the rate at which the mask was drawn; what is kept is scaled by 1 / (1 - rate).
    """
    if mask is None:
        return x
    scale = 1 / (1 - rate) if rate < 1 else 0.0
    return masked(x, mask, scale)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(..., T, C) -> (..., H, T, C/H), a view."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def merge_heads(x: Tensor) -> Tensor:
    """(..., H, T, C/H) -> (..., T, C)."""
    return x.transpose(-2, -3).flatten(-2)
