"""SReT: blocks with sliced attention that run several times in succession, with a projection between the runs.

A block stores two learnable scalars for each residual sum (LRC). A pass owns the slices of its attention and the MLP
after it, the non-linear projection (NLL).

Source: Sliced Recursive Transformer (arXiv:2111.05297), section 3 (Equation 7 for the Mixer), and section 4 for
the slices.
Differs from the published code: see :mod:`recurrence.slicing`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.block import Block, Pass, Shape, Sublayer
from recurrence.errors import FieldError
from recurrence.ffn import FeedForward, TokenMixing
from recurrence.loop import Loop
from recurrence.order import Order, block_count
from recurrence.residual import Coefficients, NonlinearProjection
from recurrence.slicing import SliceConfig, Slices


@dataclass(frozen=True)
class Recursion:
    """What SReT adds to the passes of a block.

    Args:
        coefficients: learnable scalars in the residual sums (LRC).
        projection_width: hidden width of the projection after a pass (NLL); None for none.
        projection_every: one projection after this many passes; must divide their number.
        slices: slices of self-attention; None for global attention.
    """

    coefficients: bool = True
    projection_width: int | None = None
    projection_every: int = 1
    slices: SliceConfig | None = None

    def check(self, passes: int) -> None:
        """Raises FieldError if a value does not fit a loop with this many passes."""
        if self.projection_width is not None and self.projection_width < 1:
            raise FieldError("projection_width", self.projection_width, "must be >= 1")
        if self.projection_every < 1 or passes % self.projection_every:
            raise FieldError("projection_every", self.projection_every, f"must divide the {passes} passes")
        if self.slices is not None and len(self.slices.groups) != passes:
            raise FieldError("groups", self.slices.groups, f"needs one for each of the {passes} passes")

    def residuals(self, sublayers: int) -> nn.ModuleList | None:
        """The scalars of a block; None for plain residual sums."""
        return nn.ModuleList(Coefficients() for _ in range(sublayers)) if self.coefficients else None


class SReTPass(Pass):
    """What a pass owns: the slices of its attention, and the projection after it."""

    def __init__(self, index: int, sublayers: int, shape: Shape, recursion: Recursion, drop_path: float | None):
        super().__init__(sublayers, drop_path)
        self.slices: Slices | None = None if recursion.slices is None else recursion.slices.of_pass(index)
        self.projection: NonlinearProjection | None = None
        if recursion.projection_width is not None and not (index + 1) % recursion.projection_every:
            self.projection = NonlinearProjection(
                shape.width, recursion.projection_width, shape.norm_eps, recursion.coefficients
            )

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """Also loads weights that were trained with slices."""
        if self.slices is None:
            state_dict.pop(f"{prefix}slices.permutation", None)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def project(self, x: Tensor) -> Tensor:
        """The projection after the pass, if it has one: (B, T, C) -> (B, T, C)."""
        return x if self.projection is None else self.projection(x)


class SReTBlock(Block):
    """Equation 9: `x <- beta x + alpha attention(LN x)`, `x <- delta x + gamma FFN(LN x)`; in translation post-norm."""

    foldable = True

    def __init__(self, shape: Shape, recursion: Recursion, **parts: Any):
        super().__init__(shape, **parts)
        self.norms = shape.norms(self.sublayers)
        self.residuals = recursion.residuals(self.sublayers)

    def run(self, x: Tensor, own: SReTPass, attend: Callable, cross_attend: Callable | None) -> Tensor:
        """One pass: attention within slices, FFN, projection."""
        sliced = attend if own.slices is None else lambda n: own.slices(n, attend)
        x = self.sublayer(x, sliced, self.norms[0], own.join(0, self.residuals))
        if cross_attend is not None:
            x = self.sublayer(x, cross_attend, self.norms[1], own.join(1, self.residuals))
        return own.project(self.ffn_sublayer(x, self.ffn, self.norms[-1], own.join(-1, self.residuals)))


class MixerBlock(nn.Module):
    """MLP-Mixer's block with SReT's scalars: an MLP over the tokens, one over the features; pre-norm, GELU.

    Args:
        shape: sizes and rates; heads are not used.
        recursion: what SReT adds to the passes.
        tokens: N, how many tokens an image has.
        mixing_width: hidden width of the MLP over the tokens.
        ffn_dropout: rate on the output of the MLP over the features; that of the other MLP is the shape's `dropout`.
    """

    sublayers = 2
    pre_norm = True
    self_attn = cross_attn = None

    def __init__(self, shape: Shape, recursion: Recursion, tokens: int, mixing_width: int, ffn_dropout: float):
        super().__init__()
        self.mixing = TokenMixing(tokens, mixing_width, F.gelu, dropout=shape.activation_dropout)
        self.ffn = FeedForward(shape.width, shape.ffn_width, F.gelu, dropout=shape.activation_dropout)
        self.sublayer = Sublayer(shape.dropout, pre_norm=True)
        self.ffn_sublayer = Sublayer(ffn_dropout, pre_norm=True)
        self.norms = shape.norms(self.sublayers)
        self.residuals = recursion.residuals(self.sublayers)

    def forward(self, x: Tensor, own: SReTPass) -> Tensor:
        """(B, N, C) -> (B, N, C)."""
        x = self.sublayer(x, self.mixing, self.norms[0], own.join(0, self.residuals))
        return own.project(self.ffn_sublayer(x, self.ffn, self.norms[1], own.join(1, self.residuals)))


def sret(
    shape: Shape,
    order: Order,
    recursion: Recursion,
    drop_path: Sequence[float] | None = None,
    block: Callable[..., nn.Module] = SReTBlock,
    **parts: Any,
) -> Loop:
    """Stored blocks in an order, with SReT's additions to their passes.

    Args:
        shape: sizes and rates.
        order: the block that runs in each pass.
        recursion: coefficients, projections and slices.
        drop_path: one rate per pass; None for none.
        block: :class:`SReTBlock` or :class:`MixerBlock`.
        **parts: of the block.

    Raises:
        FieldError: where a value breaks its rule.
    """
    recursion.check(len(order))
    blocks = [block(shape, recursion, **parts) for _ in range(block_count(order))]
    rates = drop_path or (None,) * len(order)
    own = [
        SReTPass(index, blocks[which].sublayers, shape, recursion, rate)
        for index, (which, rate) in enumerate(zip(order, rates))
    ]
    return Loop(blocks, order, own)
