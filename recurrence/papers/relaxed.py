"""Relaxed Recursive Transformers: shared layers, with a low-rank term on chosen projections in each pass.

A pass owns its LayerNorms, the terms, and the biases of the projections with a term. With full-rank terms on every
projection a pass can equal any layer; with low-rank terms it approximates one with a fraction of the parameters.

Source: Relaxed Recursive Transformers (arXiv:2410.20672), sections 3.2 and 3.3.
Differs from the paper: Q, K and V have one term each, and so have keys and values of cross-attention; the pass owns
LayerNorms and biases.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from recurrence.block import PROJECTIONS, Block, Pass, Shape, projections
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.order import Order, block_count
from recurrence.signal import LevelSignal


class LowRankTerm(LevelSignal):
    """A pass's term on stacked projections: a level signal with the same input as the projection, and a bias.

    It starts at 0: `up` and the bias are 0, `down` normal with deviation 1 / sqrt(in).

    Args:
        targets: K, how many projections are stacked.
        width, out_width: of each projection.
        rank: rank of each term.
        bias: whether there is a bias.
    """

    def __init__(self, targets: int, width: int, out_width: int, rank: int, bias: bool):
        super().__init__(targets, width, out_width, rank, before=False)
        nn.init.normal_(self.down, std=width**-0.5)
        self.bias = nn.Parameter(torch.zeros(targets * out_width)) if bias else None


class RelaxedPass(Pass):
    """What a pass owns: LayerNorms, low-rank terms and their biases."""

    def __init__(self, block: "RelaxedBlock", shape: Shape, rank: int, terms: Sequence[str], bias: bool):
        super().__init__(block.sublayers, shape.norms(block.sublayers))
        self.terms = nn.ModuleDict()
        for name, layer in projections(block).items():
            if name in terms:
                targets = PROJECTIONS[name][1]
                self.terms[name] = LowRankTerm(targets, layer.in_features, layer.out_features // targets, rank, bias)

    def term(self, name: str) -> LowRankTerm | None:
        return getattr(self.terms, name, None)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """Older checkpoints name the terms on Q, K and V and on W1 after RingFormer's signals."""
        for old, new in (("qkv_signal", "terms.qkv"), ("ffn_signal", "terms.up")):
            for key in [key for key in state_dict if key.startswith(f"{prefix}{old}.")]:
                state_dict[prefix + new + key[len(prefix + old) :]] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class RelaxedBlock(Block):
    """A transformer layer without LayerNorms; a pass may add a term to each projection."""

    foldable = True

    def run(self, x: Tensor, own: RelaxedPass, attend: Callable, cross_attend: Callable | None) -> Tensor:
        """A transformer layer whose projections are `(W + up^T down) x + bias`, with term and bias of the pass."""
        term = own.term
        attend = partial(attend, qkv_term=term("qkv"), out_term=term("out"))
        x = self.sublayer(x, attend, own.norms[0], own.join(0))
        if cross_attend is not None:
            cross_attend = partial(cross_attend, q_term=term("cross_q"), out_term=term("cross_out"))
            x = self.sublayer(x, cross_attend, own.norms[1], own.join(1))
        up, down = term("up"), term("down")
        return self.ffn_sublayer(x, lambda n: self.ffn(n, up_term=up, down_term=down), own.norms[-1], own.join(-1))


def relaxed(
    shape: Shape,
    order: Order,
    rank: int,
    terms: Sequence[str] | None = None,
    bias: bool = True,
    **parts: Any,
) -> Loop:
    """Stored layers in an order, with the terms of each pass.

    Args:
        shape, order, parts: see :mod:`recurrence.papers`.
        rank: rank of the terms.
        terms: the projections with a term, of :data:`recurrence.block.PROJECTIONS`; None for all.
        bias: whether projections have biases.
    """
    if not 1 <= rank <= shape.width:
        raise FieldError("residual_rank", rank, "must be >= 1 and <= {width}", width=shape.width)
    terms = tuple(PROJECTIONS) if terms is None else terms
    if not terms or not set(terms) <= set(PROJECTIONS):
        raise FieldError("terms", terms, f"must name some of {tuple(PROJECTIONS)}")
    blocks = [RelaxedBlock(shape, bias=bias, **parts) for _ in range(block_count(order))]
    own = [RelaxedPass(blocks[which], shape, rank, terms, bias) for which in order]
    for block in blocks:
        for name, layer in projections(block).items():
            if name in terms:
                layer.register_parameter("bias", None)  # the passes have one each
    return Loop(blocks, order, own)
