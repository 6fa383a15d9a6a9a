"""The recurrence along the sequence: a block reads the state that it left behind, one window of tokens after the other.

With B the pre-norm block, causal within what it is given, and x_0, x_1, ... the input cut into windows of w tokens:

    h_0 = B(x_0)        (., h_i) = B([h_{i-1}; x_i])

and accumulating, with p_0 = x_0:

    (p_i, h_i) = B([p_{i-1} / 2 + h_{i-1}; p_{i-1} / 2 + x_i])

:mod:`recurrence.papers.kausik` makes a layer of it. Here is only what has to go step by step, and its backward pass,
which keeps nothing but the states: all steps are computed again at once from them; then the state's gradient goes back
step by step; then each weight's gradient is one product over all steps.

Source: Kausik, "Recurrent Transformers", the published code's language model (w = 1) and its window variant.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from recurrence.attention import causal_bias
from recurrence.linear import HALF_PRECISION, linear, product_dtype

_masked = torch.ops.aten.native_dropout_backward


class Spec(NamedTuple):
    """What a step is, apart from its tensors; rates are those of dropout, 0 where there is none."""

    window: int
    heads: int
    accumulate: bool
    eps: float
    activation: Callable[[Tensor], Tensor]
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0


class Weights(NamedTuple):
    """The block's weights. `inner` projects what a step reads: the state to its keys and values, (2 C, C), or
    accumulating the whole window to queries, keys and values, (3 C, C)."""

    norm1: Tensor
    inner: Tensor
    out: Tensor
    norm2: Tensor
    up: Tensor
    down: Tensor


class Masks(NamedTuple):
    """What dropout keeps at each application of the block, (N, ...) bool: attention weights, attention's output, hidden
    units, the FFN's output; None where nothing is dropped."""

    attention: Tensor | None = None
    attended: Tensor | None = None
    hidden: Tensor | None = None
    ffn: Tensor | None = None


class Activations(NamedTuple):
    """What the backward pass of a step reads; the statistics are mean and inverse deviation."""

    read: Tensor
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


class Waiting(NamedTuple):
    """Gradients of a step that no step before it needs: of the input, of its queries, of its keys beside its values,
    and of what the weights gave in the loop."""

    x: Tensor
    q: Tensor | None
    keys_values: Tensor | None
    normed1: Tensor
    projected: Tensor
    out: Tensor
    normed2: Tensor
    ffn: Tensor


# Compiled, the loop would be unrolled into one graph of all steps.
@torch._disable_dynamo  # as torch.compiler.disable, which imports the compiler at once
def scan(spec: Spec, weights: Weights, first: Tensor, x: Tensor, qkv: Tensor | None) -> Tensor:
    """All states, `first` included.

    Args:
        spec: what a step is.
        weights: of the block.
        first: (B, w, C), h_0; accumulating (B, 2 w, C), p_0 above h_0.
        x: (N, B, w, C), the windows after the first.
        qkv: (N, B, w, 3 C), queries, keys and values of x; None accumulating.

    Returns:
        (N + 1, *first.shape).
    """
    masks, dtype = _draw_masks(spec, weights, first, x), product_dtype(x)
    if dtype not in HALF_PRECISION:
        return _Scan.apply(spec, masks, first, x, qkv, *weights)
    # Products in half precision; state, stream and norms in float32, or the state is rounded anew by every step.
    stream, device = x.float(), x.device.type
    matrices = (weight.to(dtype) if weight.dim() == 2 else weight.float() for weight in weights)
    with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
        return _Scan.apply(spec, masks, first.float(), stream, qkv, *matrices).to(x.dtype)


def _draw_masks(spec: Spec, weights: Weights, first: Tensor, x: Tensor) -> Masks:
    tokens = x.size(0), *first.shape[:2]

    def mask(rate: float, *shape: int) -> Tensor | None:
        return torch.rand(shape, device=x.device) >= rate if rate else None

    return Masks(
        attention=mask(spec.attention_dropout, *tokens[:2], spec.heads, tokens[2], 2 * spec.window),
        attended=mask(spec.dropout, *tokens, x.size(-1)),
        hidden=mask(spec.activation_dropout, *tokens, weights.up.size(0)),
        ffn=mask(spec.dropout, *tokens, x.size(-1)),
    )


def activations(
    spec: Spec, weights: Weights, masks: Masks, state: Tensor, x: Tensor, qkv: Tensor | None
) -> Activations:
    """A step up to the FFN's hidden units; all steps at once where the tensors have a leading dimension N.

    Args:
        spec, weights: as for :func:`scan`.
        masks: of this step.
        state: (B, w, C) or (B, 2 w, C).
        x: (B, w, C).
        qkv: (B, w, 3 C) or None.
    """
    if spec.accumulate:
        p, h = state.chunk(2, dim=-2)
        read = stream = torch.cat([p / 2 + h, p / 2 + x], dim=-2)
    else:
        read, stream = state, x
    normed1, mean1, rstd1 = _norm(spec, read, weights.norm1)
    q, keys_values = _queries_keys_values(spec, _linear(normed1, weights.inner), qkv)
    q, k, v = (_split(part, spec.heads) for part in (q, *keys_values.chunk(2, dim=-1)))
    scores = _dots(q, k) * q.size(-1) ** -0.5
    if q.size(-2) > 1:
        scores = scores + causal_bias(k.size(-2), like=scores)[-q.size(-2) :]
    attention = scores.softmax(-1)
    attended = _merge(_sums(_drop(attention, masks.attention, spec.attention_dropout), v))
    middle = stream + _drop(_linear(attended, weights.out), masks.attended, spec.dropout)
    normed2, mean2, rstd2 = _norm(spec, middle, weights.norm2)
    hidden = _linear(normed2, weights.up)
    return Activations(read, mean1, rstd1, q, k, v, attention, attended, middle, mean2, rstd2, hidden)


def step(spec: Spec, weights: Weights, masks: Masks, state: Tensor, x: Tensor, qkv: Tensor | None) -> Tensor:
    """The next state, from the arguments of :func:`activations`."""
    acts = activations(spec, weights, masks, state, x, qkv)
    activated = _drop(spec.activation(acts.hidden), masks.hidden, spec.activation_dropout)
    return acts.middle + _drop(_linear(activated, weights.down), masks.ffn, spec.dropout)


def step_backward(
    spec: Spec, transposed: Weights, masks: Masks, acts: Activations, slope: Tensor, grad: Tensor
) -> tuple[Tensor, Waiting]:
    """The gradient of a step's state, and those that wait.

    Args:
        spec, masks, acts: of the step.
        transposed: the weights, each matrix transposed.
        slope: derivative of the activation at the hidden units; becomes the gradient of the hidden units.
        grad: gradient of the next state.
    """
    ffn = _drop(grad, masks.ffn, spec.dropout)
    hidden = slope.mul_(_drop(_linear(ffn, transposed.down), masks.hidden, spec.activation_dropout))
    normed2 = _linear(hidden, transposed.up)
    middle = grad + _norm_backward(normed2, acts.middle, acts.mean2, acts.rstd2, transposed.norm2)
    out = _drop(middle, masks.attended, spec.dropout)
    q, k, v = _attention_backward(spec, masks, acts, _split(_linear(out, transposed.out), spec.heads))
    if spec.accumulate:
        projected, q, of_x = torch.cat([q, k, v], dim=-1), None, None
    else:
        projected, of_x = torch.cat([k, v], dim=-1).tensor_split([spec.window], dim=-2)
    normed1 = _linear(projected, transposed.inner)
    state = _norm_backward(normed1, acts.read, acts.mean1, acts.rstd1, transposed.norm1)
    x = middle
    if spec.accumulate:
        upper, x = (state + middle).chunk(2, dim=-2)
        state = torch.cat([(upper + x) / 2, upper], dim=-2)
    return state, Waiting(x, q, of_x, normed1, projected, out, normed2, ffn)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, spec, masks, first, x, qkv, *weights):
        quick, steps = _columns_first(Weights(*weights)), x.size(0)
        states = [first]
        for own_masks, own_x, own_qkv in zip(_each(masks, steps), x, _unbind(qkv, steps)):
            states.append(step(spec, quick, own_masks, states[-1], own_x, own_qkv))
        states = torch.stack(states)
        ctx.spec = spec
        ctx.save_for_backward(states, x, qkv, *masks, *weights)
        return states

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_states):
        spec = ctx.spec
        states, x, qkv, *rest = ctx.saved_tensors
        masks, weights, steps = Masks(*rest[:4]), Weights(*rest[4:]), x.size(0)
        acts = activations(spec, weights, masks, states[:-1], x, qkv)
        activated, slope = _with_slope(spec.activation, acts.hidden)
        activated, acts = _drop(activated, masks.hidden, spec.activation_dropout), acts._replace(hidden=None)
        transposed = Weights(*(weight.t() for weight in weights))
        own_masks, own_acts, waiting = _each(masks, steps), _each(acts, steps), []
        grad = grad_states[-1]
        for i in reversed(range(steps)):
            grad, own = step_backward(spec, transposed, own_masks[i], own_acts[i], slope[i], grad)
            grad = grad + grad_states[i]
            waiting.append(own)
        waiting = Waiting(*(None if own[0] is None else torch.stack(own[::-1]) for own in zip(*waiting)))
        # By now step_backward has made the gradient of the hidden units out of their slope.
        of_weights = _weight_gradients(spec, weights, acts, activated, slope, waiting)
        of_qkv = None if qkv is None else torch.cat([waiting.q, waiting.keys_values], dim=-1)
        return None, None, grad, waiting.x, of_qkv, *of_weights


def _weight_gradients(
    spec: Spec, weights: Weights, acts: Activations, activated: Tensor, hidden: Tensor, waiting: Waiting
) -> Weights:
    """One product over all steps for each matrix."""
    normed1, normed2 = _norm(spec, acts.read, weights.norm1)[0], _norm(spec, acts.middle, weights.norm2)[0]
    return Weights(
        norm1=_norm_weight_gradient(waiting.normed1, acts.read, acts.mean1, acts.rstd1, weights.norm1),
        inner=_product(waiting.projected, normed1),
        out=_product(waiting.out, acts.attended),
        norm2=_norm_weight_gradient(waiting.normed2, acts.middle, acts.mean2, acts.rstd2, weights.norm2),
        up=_product(hidden, normed2),
        down=_product(waiting.ffn, activated),
    )


def _attention_backward(spec: Spec, masks: Masks, acts: Activations, grad: Tensor) -> tuple[Tensor, ...]:
    """Gradients of queries (B, queries, C), keys and values (B, 2 w, C), from that of the attended values, by heads."""
    rate, scale = spec.attention_dropout, acts.q.size(-1) ** -0.5
    v = _spread(_drop(acts.attention, masks.attention, rate), grad)
    attention = _drop(_dots(grad, acts.v), masks.attention, rate)
    scores = torch._softmax_backward_data(attention, acts.attention, -1, attention.dtype) * scale
    return _merge(_sums(scores, acts.k)), _merge(_spread(scores, acts.q)), _merge(v)


# Products of attention. For a single query a call of a matrix product, with the copies that it makes, costs more than
# the sums themselves.


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """a b^T: (..., M, D), (..., S, D) -> (..., M, S)."""
    return (a * b).sum(-1).unsqueeze(-2) if a.size(-2) == 1 else a @ b.transpose(-1, -2)


def _sums(weights: Tensor, x: Tensor) -> Tensor:
    """weights x: (..., M, S), (..., S, D) -> (..., M, D)."""
    return (weights.transpose(-1, -2) * x).sum(-2, keepdim=True) if weights.size(-2) == 1 else weights @ x


def _spread(weights: Tensor, x: Tensor) -> Tensor:
    """weights^T x: (..., M, S), (..., M, D) -> (..., S, D)."""
    weights = weights.transpose(-1, -2)
    return weights * x if x.size(-2) == 1 else weights @ x


def _queries_keys_values(spec: Spec, projected: Tensor, qkv: Tensor | None) -> tuple[Tensor, Tensor]:
    """Queries (..., queries, C), and keys beside values (..., 2 w, 2 C): the state's above those of x."""
    whole = projected if spec.accumulate else qkv
    q, keys_values = whole.tensor_split([whole.size(-1) // 3], dim=-1)
    return q, keys_values if spec.accumulate else torch.cat([projected, keys_values], dim=-2)


def _with_slope(activation: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """activation(x) and its derivative, element by element."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = activation(x)
    return y.detach(), torch.autograd.grad(y, x, torch.ones_like(y))[0]


def _norm(spec: Spec, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.native_layer_norm(x, weight.shape, weight, None, spec.eps)


def _norm_backward(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> Tensor:
    wanted = [True, False, False]
    return torch.ops.aten.native_layer_norm_backward(
        grad.to(x.dtype), x, weight.shape, mean, rstd, weight, None, wanted
    )[0]


def _norm_weight_gradient(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> Tensor:
    wanted = [False, True, False]
    return torch.ops.aten.native_layer_norm_backward(
        grad.to(x.dtype), x, weight.shape, mean, rstd, weight, None, wanted
    )[1]


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    return linear(x.to(weight.dtype), weight)


def _product(grad: Tensor, x: Tensor) -> Tensor:
    """A matrix' gradient: (N, ..., out), (N, ..., in) -> (out, in)."""
    grad = grad.flatten(0, -2)
    return linear(grad.t(), x.to(grad.dtype).flatten(0, -2).t())


def _columns_first(weights: Weights) -> Weights:
    """The same weights laid out so that a product with few rows, repeated at every step, reads them in order."""
    return Weights(*(weight if weight.dim() == 1 else weight.t().contiguous().t() for weight in weights))


def _drop(x: Tensor, mask: Tensor | None, rate: float) -> Tensor:
    return x if mask is None else _masked(x, mask, 1 / (1 - rate) if rate < 1 else 0.0)


def _split(x: Tensor, heads: int) -> Tensor:
    """(..., T, C) -> (..., H, T, C/H), a view."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def _merge(x: Tensor) -> Tensor:
    """(..., H, T, C/H) -> (..., T, C)."""
    return x.transpose(-2, -3).flatten(-2)


def _each(tensors, steps: int):
    """The tuple of each step."""
    return [type(tensors)(*own) for own in zip(*(_unbind(tensor, steps) for tensor in tensors))]


def _unbind(tensor: Tensor | None, steps: int):
    return [None] * steps if tensor is None else tensor.unbind(0)
