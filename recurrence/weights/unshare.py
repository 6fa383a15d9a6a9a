"""A loop over depth as unshared layers: what every pass has of its own is multiplied out into a copy of its block.

The layers are plain ones, which every toolkit has: self-attention, cross-attention where there is a memory, and FFN,
with biases and a LayerNorm each. They are state dicts in the key names of :class:`recurrence.block.Block`. Tensors that
passes share stay shared, so that torch writes them to a file once.

Exact, in real numbers, for level signals and low-rank terms (`W x + M x = (W + M) x`), post-norm residual coefficients
and Admin's vectors, one LayerNorm for all sublayers, one FFN for all blocks or none, and any epsilon: a LayerNorm of
`s x` with the epsilon `s^2 e` is one of `x` with `e`, so a stream that is scaled, which the matrices on its ends take
back, has any epsilon.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from recurrence.admin import Admin
from recurrence.block import Block, Pass
from recurrence.loop import Loop
from recurrence.lowrank import PROJECTIONS
from recurrence.papers.baselines import WideFFN
from recurrence.papers.sret import MixerBlock
from recurrence.residual import Coefficients, Sum
from recurrence.signal import LevelSignal
from recurrence.weights.names import StateDict

# The projections that read the stream, and those that write to it.
READS = {"self_attn": "self_attn.qkv", "cross_attn": "cross_attn.q", "ffn": "ffn.up"}
WRITES = {"self_attn": "self_attn.out", "cross_attn": "cross_attn.out", "ffn": "ffn.down"}

Factor: TypeAlias = Tensor | float


@dataclass(frozen=True)
class Part:
    """`norm(identity x + branch f(x))`, or in a pre-norm stack `x + f(norm(x))`.

    Args:
        kind: "self_attn", "cross_attn" or "ffn".
        tensors: weights and biases of f.
        norm: weight and bias.
        epsilon: of the norm.
        identity: coefficient of the stream, a number or (C,).
        branch: coefficient of f.
        filler: whether f is 0 and stands where the loop has nothing.
    """

    kind: str
    tensors: StateDict
    norm: tuple[Tensor, Tensor]
    epsilon: float
    identity: Tensor | float = 1.0
    branch: float = 1.0
    filler: bool = False


def unshare(loop: Loop, epsilon: float = 1e-5) -> tuple[list[StateDict], Factor]:
    """The layers that compute what a loop computes at inference.

    Args:
        loop: of any paper's blocks; it is left as it is.
        epsilon: of the layers' LayerNorms.

    Returns:
        The layers, and the factor on the stream, a number or (C,): the caller scales the first layer's input by it. A
        post-norm stack's output is the loop's; a pre-norm stack's is scaled too, which a final norm with the layers'
        epsilon takes back.

    Raises:
        ValueError: naming what no plain layer has.
    """
    check(loop)
    with torch.no_grad():
        sublayers = [part for index in range(loop.passes) for part in _sublayers(loop, index)]
        pre_norm = loop.blocks[0].pre_norm
        sublayers = _with_ffn(sublayers)
        scaled, factor = (_scale_pre_norm if pre_norm else _scale_post_norm)(sublayers, epsilon)
        return _layers(scaled), factor


def check(loop: Loop) -> None:
    """Raises ValueError where a loop has what no plain layer has, and names it."""
    for block in loop.blocks:
        if not isinstance(block, Block | WideFFN):
            mixing = "token mixing: " if isinstance(block, MixerBlock) else ""
            raise ValueError(f"{mixing}{type(block).__name__} is not a block of attention and FFN with LayerNorms")
        if block.pre_norm and getattr(block, "residuals", None):
            raise ValueError("residual coefficients: a pre-norm upstream layer adds to the stream as it is")
    if loop.inject:
        raise ValueError("injected inputs: an upstream layer reads the one before it alone")
    for own in loop.own:
        if getattr(own, "projection", None) is not None:
            raise ValueError("the non-linear projection behind a pass: an upstream layer ends with its FFN")
        if getattr(own, "slices", None) is not None:
            raise ValueError("sliced attention: an upstream layer attends to all tokens")
        if loop.blocks[0].pre_norm and LevelSignal in {type(own.term(name)) for name in PROJECTIONS}:
            raise ValueError(
                "level signals of a pre-norm stack: they read the stream before the norm, no upstream layer does"
            )


def _sublayers(loop: Loop, index: int) -> Iterator[Part]:
    """Those of one pass, with everything that the pass has of its own folded in."""
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
            *_coefficients(residuals[which]),
        )


def _coefficients(residual: Sum | Coefficients | Admin) -> tuple[Factor, float]:
    """Of the stream and of the sublayer's output."""
    if isinstance(residual, Admin):
        return residual.omega.detach(), 1.0
    return (1.0, 1.0) if isinstance(residual, Sum) else (residual.identity.item(), residual.branch.item())


def _folded(block: Block | WideFFN, own: Pass) -> StateDict:
    """Weights and biases of all projections of one pass."""
    tensors = {}
    for term_name, (name, _) in PROJECTIONS.items():
        part, _, projection = name.partition(".")
        if getattr(block, part) is None:
            continue
        layer, term = getattr(getattr(block, part), projection), own.term(term_name)
        if type(layer) is not nn.Linear:
            raise ValueError(f"{name} is {type(layer).__module__}.{type(layer).__name__}: must be torch.nn.Linear")
        weight = layer.weight if term is None else term.fold(layer.weight)
        bias = layer.bias if term is None else term.bias_of(layer)
        tensors[f"{name}.weight"] = weight.detach()
        tensors[f"{name}.bias"] = weight.new_zeros(len(weight)) if bias is None else bias.detach()
    return tensors


def _with_ffn(sublayers: list[Part]) -> list[Part]:
    """Puts an FFN of width 1 that gives 0 where a layer ends without one."""
    filled = []
    for part, following in zip(sublayers, [*sublayers[1:], None]):
        filled.append(part)
        if part.kind != "ffn" and (following is None or following.kind == "self_attn"):
            width = part.norm[0]
            zeros = dict(zip(("ffn.up.weight", "ffn.up.bias"), (width.new_zeros(1, len(width)), width.new_zeros(1))))
            zeros |= {"ffn.down.weight": width.new_zeros(len(width), 1), "ffn.down.bias": torch.zeros_like(width)}
            filled.append(replace(part, kind="ffn", tensors=zeros, identity=1.0, branch=1.0, filler=True))
    return filled


def _scale_pre_norm(sublayers: list[Part], epsilon: float) -> tuple[list[Part], float]:
    """One factor for the whole stream, which its norms take back."""
    factor = math.sqrt(epsilon / sublayers[0].epsilon)
    return [replace(part, tensors=_scaled(part, 1.0, factor)) for part in sublayers], factor


def _scale_post_norm(sublayers: list[Part], epsilon: float) -> tuple[list[Part], Factor]:
    """A factor for the stream before each sublayer, which is part of the norm before it.

    Two norms in succession, of the epsilons e and f, are one of the epsilon `e f / (1 + f)`, divided by `sqrt(1 + f)`.
    So where an FFN gives 0, the norms before and behind it share the work: f = 1/9, and e ten times the epsilon wanted.
    """
    ends = [*sublayers[1:], None]
    sums = [
        math.sqrt(epsilon / part.epsilon / (10 if end is not None and end.filler else 1))
        for part, end in zip(sublayers, ends)
    ]
    streams = [
        3 * math.sqrt(epsilon) if part.filler else factor * part.identity for part, factor in zip(sublayers, sums)
    ]
    if any(0 in torch.as_tensor(stream) for stream in streams):
        raise ValueError("residual coefficients: one of the stream itself is 0, an upstream layer always keeps it")
    scaled = []
    for part, end, factor, stream, following in zip(sublayers, ends, sums, streams, [*streams[1:], 1.0]):
        weight, bias = part.norm
        if end is not None and end.filler:
            weight, bias = torch.ones_like(weight), torch.zeros_like(bias)
        if part.filler:
            weight = weight * math.sqrt(10 / 9)
        norm = times(weight, following), times(bias, following)
        tensors = part.tensors if part.filler else _scaled(part, 1 / stream, factor * part.branch)
        scaled.append(replace(part, tensors=tensors, norm=norm))
    return scaled, streams[0]


def _scaled(part: Part, reads: Factor, writes: float) -> StateDict:
    """Its tensors, of another scale where it reads the stream and where it writes to it."""
    tensors, out = dict(part.tensors), WRITES[part.kind]
    factors = {f"{READS[part.kind]}.weight": reads, f"{out}.weight": writes, f"{out}.bias": writes}
    return {**tensors, **{key: times(tensors[key], factor) for key, factor in factors.items()}}


def is_one(factor: Factor) -> bool:
    """Whether nothing is scaled."""
    return not isinstance(factor, Tensor) and factor == 1


def times(tensor: Tensor, factor: Factor) -> Tensor:
    """The product along the last dimension; 1 gives the tensor itself, which others may share."""
    return tensor if is_one(factor) else tensor * factor


def _layers(sublayers: list[Part]) -> list[StateDict]:
    """One state dict per layer, which begins with its self-attention."""
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
