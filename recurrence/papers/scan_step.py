"""One step of :mod:`recurrence.papers.scan` and its backward pass, written by hand.

A step is the pre-norm block without biases: LayerNorm, attention, LayerNorm, FFN. Its backward pass is split: the
gradient of the state is needed by the step before, everything else can wait until the loop is over (:class:`Deferred`).

The tensors of one step have no leading dimension N; with one, the functions compute all N steps at once.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from recurrence.attention import causal_bias
from recurrence.private_torch import softmax_backward

_layer_norm_backward = torch.ops.aten.native_layer_norm_backward


class Spec(NamedTuple):
    """The sizes of a step."""

    window: int
    heads: int
    accumulate: bool
    eps: float
    activation: Callable[[Tensor], Tensor]


class Weights(NamedTuple):
    """The weights of the block.

    `projection` gives a step its keys and values of the state, (2 C, C). When accumulating, it gives the queries, keys
    and values of state and window, (3 C, C).
    """

    norm1: Tensor
    projection: Tensor
    out: Tensor
    norm2: Tensor
    up: Tensor
    down: Tensor


class Factors(NamedTuple):
    """What dropout multiplies by 0 or 1 / (1 - rate): attention weights, output of attention, hidden units, output.

    None where nothing is dropped.
    """

    attention: Tensor | None = None
    attended: Tensor | None = None
    hidden: Tensor | None = None
    ffn: Tensor | None = None


class Activations(NamedTuple):
    """What the backward pass of a step needs.

    `source` is the input of the first norm, `middle` that of the second. `mean` and `rstd` are statistics of the norms.
    """

    source: Tensor
    mean1: Tensor
    rstd1: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    attention: Tensor
    attended: Tensor
    middle: Tensor
    mean2: Tensor
    rstd2: Tensor
    hidden: Tensor | None


class Deferred(NamedTuple):
    """Gradients of a step that no other step needs.

    Those of its inputs: the window `x`, its queries `q`, its keys and values `keys_values` (both None when
    accumulating). And those of the outputs of its layers, from which the gradients of the weights follow.
    """

    x: Tensor
    q: Tensor | None
    keys_values: Tensor | None
    normed1: Tensor
    projected: Tensor
    out: Tensor
    normed2: Tensor
    ffn: Tensor


def activations(
    spec: Spec, weights: Weights, factors: Factors, state: Tensor, x: Tensor, qkv: Tensor | None
) -> Activations:
    """A step up to the FFN's hidden units.

    Args:
        spec, weights, factors: sizes, weights of the block, dropout of this step.
        state: (B, w, C), h_{i-1}; when accumulating (B, 2 w, C), p_{i-1} above h_{i-1}.
        x: (B, w, C), the window x_i.
        qkv: (B, w, 3 C), queries, keys and values of x; None when accumulating.
    """
    if spec.accumulate:
        p, h = state.chunk(2, dim=-2)
        source = stream = torch.cat([p / 2 + h, p / 2 + x], dim=-2)
    else:
        source, stream = state, x
    normed1, mean1, rstd1 = norm(source, weights.norm1, spec.eps)
    projected = linear(normed1, weights.projection)
    stacked = projected if spec.accumulate else qkv
    q, keys_values = stacked.tensor_split([stacked.size(-1) // 3], dim=-1)
    if not spec.accumulate:  # those of the state above those of x
        keys_values = torch.cat([projected, keys_values], dim=-2)
    q, k, v = (split_heads(part, spec.heads) for part in (q, *keys_values.chunk(2, dim=-1)))
    scores = matmul_nt(q, k) * q.size(-1) ** -0.5
    if q.size(-2) > 1:
        scores = scores + causal_bias(k.size(-2), like=scores)[-q.size(-2) :]
    attention = scores.softmax(-1)
    attended = merge_heads(matmul_nn(drop(attention, factors.attention), v))
    middle = stream + drop(linear(attended, weights.out), factors.attended)
    normed2, mean2, rstd2 = norm(middle, weights.norm2, spec.eps)
    hidden = linear(normed2, weights.up)
    return Activations(source, mean1, rstd1, q, k, v, attention, attended, middle, mean2, rstd2, hidden)


def step(spec: Spec, weights: Weights, factors: Factors, state: Tensor, x: Tensor, qkv: Tensor | None) -> Tensor:
    """The next state, from the arguments of :func:`activations`."""
    acts = activations(spec, weights, factors, state, x, qkv)
    activated = drop(spec.activation(acts.hidden), factors.hidden)
    return acts.middle + drop(linear(activated, weights.down), factors.ffn)


def step_backward(
    spec: Spec, transposed: Weights, factors: Factors, acts: Activations, slope: Tensor, grad: Tensor
) -> tuple[Tensor, Deferred]:
    """The gradient of a step's state, and those that can wait.

    Args:
        spec, factors, acts: of the step.
        transposed: the weights, each matrix transposed.
        slope: derivative of the activation at the hidden units; overwritten with the gradient of the hidden units.
        grad: gradient of the next state.
    """
    ffn = drop(grad, factors.ffn)
    hidden = slope.mul_(drop(linear(ffn, transposed.down), factors.hidden))
    normed2 = linear(hidden, transposed.up)
    middle = grad + norm_backward(normed2, acts.middle, acts.mean2, acts.rstd2, transposed.norm2)
    out = drop(middle, factors.attended)
    q, k, v = _attention_backward(factors, acts, split_heads(linear(out, transposed.out), spec.heads))
    if spec.accumulate:
        projected, q, keys_values = torch.cat([q, k, v], dim=-1), None, None
    else:
        projected, keys_values = torch.cat([k, v], dim=-1).tensor_split([spec.window], dim=-2)
    normed1 = linear(projected, transposed.projection)
    source = norm_backward(normed1, acts.source, acts.mean1, acts.rstd1, transposed.norm1)
    if spec.accumulate:
        # The first norm read [p / 2 + h; p / 2 + x], which is also the stream.
        upper, x = (source + middle).chunk(2, dim=-2)
        state = torch.cat([(upper + x) / 2, upper], dim=-2)
    else:
        state, x = source, middle
    return state, Deferred(x, q, keys_values, normed1, projected, out, normed2, ffn)


def _attention_backward(factors: Factors, acts: Activations, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries (..., T, C), keys and values (..., 2 w, C), from those of the output, (..., H, T, C/H)."""
    scale = acts.q.size(-1) ** -0.5
    v = matmul_tn(drop(acts.attention, factors.attention), grad)
    attention = drop(matmul_nt(grad, acts.v), factors.attention)
    scores = softmax_backward(attention, acts.attention, -1, attention.dtype) * scale
    return merge_heads(matmul_nn(scores, acts.k)), merge_heads(matmul_tn(scores, acts.q)), merge_heads(v)


# The operators. Matrix products are named as in BLAS: n for a factor as it is, t for a transposed one. With a single
# query, a matrix product and the copies that it makes cost more than the plain sums.


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
    return F.linear(x.to(weight.dtype), weight)


def linear_weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Gradient of a weight, summed over all tokens: (..., out), (..., in) -> (out, in)."""
    grad = grad.flatten(0, -2)
    return grad.t() @ x.to(grad.dtype).flatten(0, -2)


def norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm without bias: the output (..., C), and mean and inverse standard deviation of each token, (..., 1)."""
    return torch.native_layer_norm(x, weight.shape, weight, None, eps)


def norm_backward(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> Tensor:
    """Gradient of the input of :func:`norm`, (..., C), from that of its output, (..., C), and what it returned."""
    needs = [True, False, False]
    return _layer_norm_backward(grad.to(x.dtype), x, weight.shape, mean, rstd, weight, None, needs)[0]


def norm_weight_gradient(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> Tensor:
    """Gradient of the weight of :func:`norm`, (C,), summed over all tokens; arguments as :func:`norm_backward`."""
    needs = [False, True, False]
    return _layer_norm_backward(grad.to(x.dtype), x, weight.shape, mean, rstd, weight, None, needs)[1]


def drop(x: Tensor, factor: Tensor | None) -> Tensor:
    """Dropout with given factors, of values or, in the backward pass, of gradients: (...) -> the same."""
    return x if factor is None else x * factor


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(..., T, C) -> (..., H, T, C/H), a view."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def merge_heads(x: Tensor) -> Tensor:
    """(..., H, T, C/H) -> (..., T, C)."""
    return x.transpose(-2, -3).flatten(-2)
