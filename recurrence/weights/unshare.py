"""Turns a loop over depth into unshared layers: the parameters of each pass are folded into a copy of its block.

The layers are plain transformer layers, as in every toolkit: self-attention, in decoders cross-attention, and FFN, each
with biases and a LayerNorm. They are state dicts in the key names of :class:`recurrence.block.Block`. Tensors that
passes share stay shared, so that torch writes them to a file once.

Exact, up to rounding, for level signals (`W x + M x = (W + M) x`), post-norm residual coefficients
and Admin's vectors, one LayerNorm for all sublayers, one FFN for all blocks, and any epsilon. A LayerNorm of
`s x` with epsilon `s^2 e` equals one of `x` with epsilon `e`. So if the stream is scaled by s, and the matrices that
read and write it are scaled to match, only the epsilon changes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from recurrence.block import Block, Pass
from recurrence.loop import Loop
from recurrence.papers.ringformer import LevelSignal
from recurrence.relative import RelativeKeys
from recurrence.weights.names import StateDict

# The projections of a block, and the pass's signal on each; None where no pass has one.
SIGNALS = {
    "self_attn.qkv": "qkv_signal",
    "self_attn.out": None,
    "cross_attn.q": "cross_q_signal",
    "cross_attn.kv": "cross_kv_signal",
    "cross_attn.out": None,
    "ffn.up": "ffn_signal",
    "ffn.down": None,
}
# The projections that read the residual stream, and those that write to it.
READS = {"self_attn": "self_attn.qkv", "cross_attn": "cross_attn.q", "ffn": "ffn.up"}
WRITES = {"self_attn": "self_attn.out", "cross_attn": "cross_attn.out", "ffn": "ffn.down"}

Factor: TypeAlias = Tensor | float


@dataclass(frozen=True)
class Part:
    """`norm(identity x + branch f(x))`, or in a pre-norm stack `x + f(norm(x))`."""

    kind: str  # "self_attn", "cross_attn" or "ffn"
    tensors: StateDict  # weights and biases of f
    norm: tuple[Tensor, Tensor]  # weight and bias
    epsilon: float
    identity: Factor  # coefficient of the stream, a number or (C,)
    branch: float  # coefficient of f


def unshare(loop: Loop, epsilon: float = 1e-5) -> tuple[list[StateDict], Factor]:
    """The layers that compute what a loop computes at inference.

    Args:
        loop: is not changed.
        epsilon: of the layers' LayerNorms.

    Returns:
        The layers, and the factor on the stream, a number or (C,), by which the caller scales the first layer's input.
        The output of a post-norm stack is the loop's. That of a pre-norm stack is scaled by the factor, which a final
        norm with the layers' epsilon undoes.

    Raises:
        ValueError: naming the part of the loop that plain layers cannot have.
    """
    check(loop)
    # Not in `check`: fairseq's own error, which names --position, comes first.
    if any(isinstance(module, RelativeKeys) for module in loop.modules()):
        raise ValueError("relative positions: an upstream layer's scores do not depend on distances")
    with torch.no_grad():
        sublayers = [part for index in range(loop.passes) for part in _sublayers(loop, index)]
        scale = _scale_pre_norm if loop.blocks[0].pre_norm else _scale_post_norm
        scaled, factor = scale(sublayers, epsilon)
        return _layers(scaled), factor


def check(loop: Loop) -> None:
    """Raises ValueError if a loop has a part that plain layers cannot have, and names it."""
    for block in loop.blocks:
        # Not inherited by a class with another `forward`: it may have parts that the layers would silently lack.
        maker = next(kind for kind in type(block).__mro__ if "forward" in vars(kind))
        if not {**vars(maker), **vars(block)}.get("foldable", False):
            rule = "is not a block of attention and FFN with LayerNorms"
            raise ValueError(f"{type(block).__name__} {rule}, or does not say so (`foldable` of its class)")
        if block.pre_norm and getattr(block, "residuals", None):
            raise ValueError("residual coefficients: a pre-norm upstream layer adds to the stream as it is")
    if not any(block.ffn is not None for block in loop.blocks):
        raise ValueError("layers without an FFN: an upstream layer has one")
    if loop.inject:
        raise ValueError("injected inputs: an upstream layer only reads the layer before it")
    for own in loop.own:
        if getattr(own, "projection", None) is not None:
            raise ValueError("the non-linear projection behind a pass: an upstream layer ends with its FFN")
        if getattr(own, "slices", None) is not None:
            raise ValueError("sliced attention: an upstream layer attends to all tokens")
        if (left := _unfolded(own)) is not None:
            raise ValueError(f"{left} of a pass: an upstream layer has no such parameter")
        if loop.blocks[0].pre_norm and _signals(own):
            raise ValueError(
                "level signals of a pre-norm stack: they read the stream before the norm, which no upstream layer does"
            )


def _unfolded(own: Pass) -> str | None:
    """The first parameter of a pass that is in none of its norms, residual sums and signals; None if there is none."""
    parts = [getattr(own, "norms", None), own.residuals, *_signals(own).values()]
    known = {id(parameter) for part in parts if part is not None for parameter in part.parameters()}
    return next((name for name, parameter in own.named_parameters() if id(parameter) not in known), None)


def _sublayers(loop: Loop, index: int) -> Iterator[Part]:
    """The sublayers of one pass, with the parameters of the pass folded in."""
    block, own = loop.blocks[loop.order[index]], loop.own[index]
    norms, residuals = (getattr(block, name, None) or getattr(own, name) for name in ("norms", "residuals"))
    tensors, kinds = _folded(block, own), [kind for kind in READS if getattr(block, kind) is not None]
    for which, kind in enumerate(kinds):
        norm = norms[which % len(norms)]  # one norm may serve all sublayers
        yield Part(
            kind,
            {key: tensor for key, tensor in tensors.items() if key.startswith(f"{kind}.")},
            (norm.weight.detach(), torch.zeros_like(norm.weight) if norm.bias is None else norm.bias.detach()),
            norm.eps,
            *residuals[which].factors(),
        )


def _signals(own: Pass) -> dict[str, LevelSignal]:
    """The level signals of a pass, by the projection that they are added to."""
    found = {place: getattr(own, name, None) for place, name in SIGNALS.items() if name is not None}
    return {place: signal for place, signal in found.items() if signal is not None}


def _folded(block: Block, own: Pass) -> StateDict:
    """Weights and biases of all projections in one pass."""
    tensors, signals = {}, _signals(own)
    for name in SIGNALS:
        part, _, child = name.partition(".")
        if getattr(block, part) is None:
            continue
        layer = getattr(getattr(block, part), child)
        if type(layer) is not nn.Linear:
            raise ValueError(f"{name} is {type(layer).__module__}.{type(layer).__name__}: must be torch.nn.Linear")
        weight = fold(layer.weight, signals[name]) if name in signals else layer.weight
        tensors[f"{name}.weight"] = weight.detach()
        tensors[f"{name}.bias"] = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
    return tensors


def fold(weight: Tensor, signal: LevelSignal) -> Tensor:
    """The weight (K * out, C) that gives projection and signal in one product."""
    if not signal.before:
        return weight + signal.matrix().view_as(weight)
    stacked = weight.view(signal.targets, -1, weight.size(1))
    return weight + (stacked @ signal.matrix()).view_as(weight)


def _scale_pre_norm(sublayers: list[Part], epsilon: float) -> tuple[list[Part], float]:
    """Scales the stream by one factor everywhere; its norms undo it."""
    factor = math.sqrt(epsilon / sublayers[0].epsilon)
    return [replace(part, tensors=_scaled(part, 1.0, factor)) for part in sublayers], factor


def _scale_post_norm(sublayers: list[Part], epsilon: float) -> tuple[list[Part], Factor]:
    """Scales the stream before each sublayer by a factor of its own, which the norm before that sublayer applies."""
    sums = [math.sqrt(epsilon / part.epsilon) for part in sublayers]  # factor of each residual sum
    streams: list[Factor] = [factor * part.identity for factor, part in zip(sums, sublayers)]  # before each sublayer
    if any(0 in torch.as_tensor(stream) for stream in streams):
        raise ValueError("residual coefficients: one of the stream itself is 0, but an upstream layer always keeps it")
    scaled = []
    for part, factor, stream, following in zip(sublayers, sums, streams, [*streams[1:], 1.0]):
        weight, bias = part.norm
        norm = times(weight, following), times(bias, following)
        scaled.append(replace(part, tensors=_scaled(part, 1 / stream, factor * part.branch), norm=norm))
    return scaled, streams[0]


def _scaled(part: Part, reads: Factor, writes: float) -> StateDict:
    """The tensors of a sublayer, scaled where it reads the stream and where it writes to it."""
    tensors, out = dict(part.tensors), WRITES[part.kind]
    factors = {f"{READS[part.kind]}.weight": reads, f"{out}.weight": writes, f"{out}.bias": writes}
    return {**tensors, **{key: times(tensors[key], factor) for key, factor in factors.items()}}


def is_one(factor: Factor) -> bool:
    """Whether a factor is the number 1."""
    return not isinstance(factor, Tensor) and factor == 1


def times(tensor: Tensor, factor: Factor) -> Tensor:
    """The product along the last dimension; with 1 the tensor itself, so that it stays shared."""
    return tensor if is_one(factor) else tensor * factor


def _layers(sublayers: list[Part]) -> list[StateDict]:
    """One state dict per layer. A layer begins with its self-attention."""
    layers: list[StateDict] = []
    for part in sublayers:
        if part.kind == "self_attn":
            layers.append({})
            which = 0
        layers[-1].update(part.tensors)
        for name, tensor in zip(("weight", "bias"), part.norm):
            layers[-1][f"norms.{which}.{name}"] = tensor
        which += 1
    return layers
