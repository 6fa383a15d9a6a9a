"""The part of Kausik's recurrence that has to run step by step: each state depends on the state before.

:mod:`recurrence.papers.kausik` has the equations, :mod:`recurrence.papers.scan_step` a single step.

The backward pass keeps the inputs, the states and what dropout drew. It recomputes the activations of all steps at
once, takes the gradient of the state back step by step, and computes the gradient of each weight as one product over
all steps. On a GPU, the steps are one CUDA graph.

Source: Kausik, "Recurrent Transformers", the published code's language model (w = 1) and its window variant.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from recurrence.attention import product_dtype
from recurrence.papers.cuda_graph import Results, replayed
from recurrence.papers.scan_step import (
    Activations,
    Deferred,
    Factors,
    Spec,
    Weights,
    activations,
    drop,
    linear_weight_gradient,
    norm,
    norm_weight_gradient,
    step,
    step_backward,
)
from recurrence.private_torch import HALF_PRECISION, eager_only


class Dropouts(NamedTuple):
    """The dropout modules of a block: on attention weights, on hidden units, on the outputs of both sublayers."""

    attention: nn.Dropout
    hidden: nn.Dropout
    output: nn.Dropout


@eager_only  # compiled, the loop would be unrolled into one graph of all steps
def scan(spec: Spec, weights: Weights, dropouts: Dropouts, first: Tensor, x: Tensor, qkv: Tensor | None) -> Tensor:
    """All states, `first` included.

    Args:
        spec: sizes of a step.
        weights: of the block.
        dropouts: its modules, which draw what all steps drop at once.
        first: (B, w, C), h_0; when accumulating (B, 2 w, C), p_0 above h_0.
        x: (N, B, w, C), the windows after the first.
        qkv: (N, B, w, 3 C), queries, keys and values of x; None when accumulating.

    Returns:
        (N + 1, *first.shape).
    """
    dtype = product_dtype(x)
    factors = _draw(spec, weights, dropouts, first, x, dtype)
    if dtype not in HALF_PRECISION:
        return _Scan.apply(spec, factors, first, x, qkv, *weights)
    # Products in half precision. State, stream and norms stay in float32, or every step would round the state again.
    stream, device = x.float(), x.device.type
    matrices = (weight.to(dtype) if weight.dim() == 2 else weight.float() for weight in weights)
    with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
        return _Scan.apply(spec, factors, first.float(), stream, qkv, *matrices).to(x.dtype)


def _draw(spec: Spec, weights: Weights, dropouts: Dropouts, first: Tensor, x: Tensor, dtype: torch.dtype) -> Factors:
    """What dropout multiplies in all steps, (N, ...)."""
    steps, (batch, queries, width) = x.size(0), first.shape

    def draw(dropout: nn.Dropout, *shape: int) -> Tensor | None:
        if not dropout.training or not dropout.p:
            return None
        return dropout(torch.ones(steps, batch, *shape, dtype=dtype, device=x.device))

    return Factors(
        attention=draw(dropouts.attention, spec.heads, queries, 2 * spec.window),
        attended=draw(dropouts.output, queries, width),
        hidden=draw(dropouts.hidden, queries, weights.up.size(0)),
        ffn=draw(dropouts.output, queries, width),
    )


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, spec, factors, first, x, qkv, *weights):
        (states,) = replayed(_states, spec, first, x, qkv, *factors, *weights)
        ctx.spec = spec
        ctx.save_for_backward(states, x, qkv, *factors, *weights)
        return states

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_states):
        spec = ctx.spec
        states, x, qkv, *rest = ctx.saved_tensors
        factors, weights = Factors(*rest[:4]), Weights(*rest[4:])
        acts = activations(spec, weights, factors, states[:-1], x, qkv)
        activated, slope = _with_slope(spec.activation, acts.hidden)
        activated, acts = drop(activated, factors.hidden), acts._replace(hidden=None)
        transposed = (weight.t() for weight in weights)
        grad, hidden, *grads = replayed(_gradients, spec, grad_states, slope, *acts, *factors, *transposed)
        grads = Deferred(*grads)
        weight_grads = _weight_gradients(spec, weights, acts, activated, hidden, grads)
        qkv_grad = None if qkv is None else torch.cat([grads.q, grads.keys_values], dim=-1)
        return None, None, grad, grads.x, qkv_grad, *weight_grads


def _states(spec: Spec, first: Tensor, x: Tensor, qkv: Tensor | None, *factors_and_weights: Tensor | None) -> Results:
    """All states, one step after the other: (N + 1, *first.shape); the arguments of :func:`scan`, flat."""
    cut = len(Factors._fields)
    factors, weights, steps = Factors(*factors_and_weights[:cut]), Weights(*factors_and_weights[cut:]), x.size(0)
    states = [first]
    for factors_of_step, window, window_qkv in zip(_per_step(factors, steps), x, _unbind(qkv, steps)):
        states.append(step(spec, weights, factors_of_step, states[-1], window, window_qkv))
    return (torch.stack(states),)


def _gradients(spec: Spec, grad_states: Tensor, slope: Tensor, *tensors: Tensor | None) -> Results:
    """The gradients of all steps, the last one first.

    Args:
        spec: of a step.
        grad_states: (N + 1, ...), gradients of the states.
        slope: (N, ..., F), derivative of the activation at the hidden units; overwritten with their gradient.
        tensors: activations of all steps, factors, and weights, each matrix transposed.

    Returns:
        The gradients of the first state and of the hidden units, and the deferred ones of all steps, flat.
    """
    weights = -len(Weights._fields)
    factors = weights - len(Factors._fields)
    acts, transposed = Activations(*tensors[:factors]), Weights(*tensors[weights:])
    steps, deferred = slope.size(0), []
    step_factors, step_acts = _per_step(Factors(*tensors[factors:weights]), steps), _per_step(acts, steps)
    grad = grad_states[-1]
    for i in reversed(range(steps)):
        grad, deferred_of_step = step_backward(spec, transposed, step_factors[i], step_acts[i], slope[i], grad)
        grad = grad + grad_states[i]
        deferred.append(deferred_of_step)
    return grad, slope, *_stacked(deferred[::-1])


def _weight_gradients(
    spec: Spec, weights: Weights, acts: Activations, activated: Tensor, hidden: Tensor, grads: Deferred
) -> Weights:
    """The gradients of the weights, one product over all steps for each matrix.

    Args:
        spec, weights: as for :func:`scan`.
        acts: of all steps.
        activated: (N, ..., F), the hidden units after activation and dropout.
        hidden: (N, ..., F), gradient of the hidden units.
        grads: the deferred gradients of all steps.
    """
    normed1, _, _ = norm(acts.source, weights.norm1, spec.eps)
    normed2, _, _ = norm(acts.middle, weights.norm2, spec.eps)
    return Weights(
        norm1=norm_weight_gradient(grads.normed1, acts.source, acts.mean1, acts.rstd1, weights.norm1),
        projection=linear_weight_gradient(grads.projected, normed1),
        out=linear_weight_gradient(grads.out, acts.attended),
        norm2=norm_weight_gradient(grads.normed2, acts.middle, acts.mean2, acts.rstd2, weights.norm2),
        up=linear_weight_gradient(hidden, normed2),
        down=linear_weight_gradient(grads.ffn, activated),
    )


def _with_slope(activation: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """activation(x) and its derivative, element by element."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = activation(x)
    return y.detach(), torch.autograd.grad(y, x, torch.ones_like(y))[0]


def _per_step(tensors: Any, steps: int) -> list:
    """A named tuple of tensors (N, ...) as N named tuples."""
    return [type(tensors)(*each) for each in zip(*(_unbind(tensor, steps) for tensor in tensors))]


def _stacked(deferred: list[Deferred]) -> Deferred:
    """The inverse of :func:`_per_step`."""
    return Deferred(*(None if each[0] is None else torch.stack(each) for each in zip(*deferred)))


def _unbind(tensor: Tensor | None, steps: int) -> Any:
    return [None] * steps if tensor is None else tensor.unbind(0)
