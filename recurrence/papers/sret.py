"""SReT: blocks with sliced attention that run several times in succession, with a projection between the runs.

A block stores two learnable scalars for each of its residual sums (LRC). A pass owns the slices of its attention and,
behind the block, an MLP with two scalars of its own, the non-linear projection (NLL).

Source: Sliced Recursive Transformer (arXiv:2111.05297), section 3 (Equation 7 for the Mixer), and section 4 for
the slices.
Differs from the published code: see :mod:`recurrence.papers.slices`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.block import Block, Pass, Shape
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.order import Order, block_count
from recurrence.papers.slices import SliceConfig, Slices
from recurrence.parts import Dropout, FeedForward, Sublayer, Sum


class Coefficients(Sum):
    """`identity * x + branch * y` with two learnable scalars, both 1 at the start.

    Differs from the paper, which contradicts itself: its equations put alpha, gamma and zeta on the branches, its text
    on the identities. Here `identity` is on the stream and `branch` on the sublayer's output.
    """

    def __init__(self):
        super().__init__()
        self.identity = nn.Parameter(torch.ones(1))
        self.branch = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x: the stream, y: the branch, both (B, T, C) -> (B, T, C)."""
        return torch.addcmul(self.branch * y, x, self.identity)

    def factors(self) -> tuple[float, float]:
        return self.identity.item(), self.branch.item()


def named_coefficients(model: nn.Module) -> dict[str, float]:
    """The coefficients of all residual sums of a model, by parameter name."""
    sums = {name: module for name, module in model.named_modules() if isinstance(module, Coefficients)}
    return {f"{name}.{role}": value.item() for name, each in sums.items() for role, value in each.named_parameters()}


class NonlinearProjection(nn.Module):
    """SReT's NLL (Equation 5): an MLP after a run of a shared block, owned by that pass (Equation 6); theta and zeta of
    Equation 10 are its coefficients. It is pre-norm with GELU, whatever the block has.

    Args:
        shape: width, epsilon, and the rates of dropout on hidden units and output.
        hidden_width: of the MLP.
        learned: whether the residual sum has learnable coefficients.
    """

    def __init__(self, shape: Shape, hidden_width: int, learned: bool):
        super().__init__()
        self.norm = nn.LayerNorm(shape.width, shape.norm_eps)
        self.up = nn.Linear(shape.width, hidden_width)
        self.down = nn.Linear(hidden_width, shape.width)
        self.activation_dropout, self.dropout = Dropout(shape.activation_dropout), Dropout(shape.dropout)
        self.residual = Coefficients() if learned else Sum()

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        hidden = self.activation_dropout(F.gelu(self.up(self.norm(x))))
        return self.residual(x, self.dropout(self.down(hidden)))


@dataclass(frozen=True)
class Recursion:
    """What SReT adds to the passes of a block."""

    coefficients: bool = True  # learnable scalars in the residual sums (LRC)
    projection_width: int | None = None  # hidden width of the projection after a pass (NLL); None for none
    projection_every: int = 1  # one projection after this many passes; must divide their number
    slices: SliceConfig | None = None  # of self-attention; None for global attention

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

    def __init__(self, index: int, sublayers: int, shape: Shape, recursion: Recursion):
        super().__init__(sublayers)
        self.slices: Slices | None = None if recursion.slices is None else recursion.slices.of_pass(index)
        self.projection: NonlinearProjection | None = None
        if recursion.projection_width is not None and not (index + 1) % recursion.projection_every:
            self.projection = NonlinearProjection(shape, recursion.projection_width, recursion.coefficients)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """Also loads weights that were trained with slices."""
        if self.slices is None:
            state_dict.pop(f"{prefix}slices.permutation", None)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class SReTBlock(Block):
    """Equation 9: `x <- beta x + alpha attention(LN x)`, `x <- delta x + gamma FFN(LN x)`; in translation post-norm."""

    foldable = True

    def __init__(self, shape: Shape, recursion: Recursion, **parts: Any):
        super().__init__(shape, **parts)
        self.norms = shape.norms(self.sublayers)
        self.residuals = recursion.residuals(self.sublayers)

    def forward(self, x: Tensor, own: SReTPass, cross: dict | None = None, **attention: Any) -> Tensor:
        """Attention within slices, FFN, projection; see :class:`recurrence.block.Block`."""
        norms, add, drop = self.norms, self.residuals or own.residuals, own.drop_path

        def attend(n: Tensor) -> Tensor:
            return self.self_attn(n, **attention)

        sliced = attend if own.slices is None else lambda n: own.slices(n, attend)
        x = self.sublayer(x, sliced, norms[0], add[0], drop)
        if self.cross_attn is not None:
            x = self.sublayer(x, lambda n: self.cross_attn(n, **cross), norms[1], add[1], drop)
        x = self.ffn_sublayer(x, self.ffn, norms[-1], add[-1], drop)
        return x if own.projection is None else own.projection(x)


class TokenMixing(FeedForward):
    """An MLP over the tokens, the same for every feature.

    Source: MLP-Mixer (arXiv:2105.01601), section 2.
    """

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # nothing is added to its hidden units
        """(B, N, C) -> (B, N, C)."""
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


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
    self_attn = None  # as in a Block without attention

    def __init__(self, shape: Shape, recursion: Recursion, tokens: int, mixing_width: int, ffn_dropout: float):
        super().__init__()
        self.mixing = TokenMixing(tokens, mixing_width, F.gelu, True, shape.activation_dropout)
        self.ffn = FeedForward(shape.width, shape.ffn_width, F.gelu, True, shape.activation_dropout)
        self.sublayer = Sublayer(shape.dropout, pre_norm=True)
        self.ffn_sublayer = Sublayer(ffn_dropout, pre_norm=True)
        self.norms = shape.norms(self.sublayers)
        self.residuals = recursion.residuals(self.sublayers)

    def forward(self, x: Tensor, own: SReTPass) -> Tensor:
        """(B, N, C) -> (B, N, C)."""
        add, drop = self.residuals or own.residuals, own.drop_path
        x = self.sublayer(x, self.mixing, self.norms[0], add[0], drop)
        x = self.ffn_sublayer(x, self.ffn, self.norms[1], add[1], drop)
        return x if own.projection is None else own.projection(x)


def sret(
    shape: Shape, order: Order, recursion: Recursion, block: Callable[..., nn.Module] = SReTBlock, **parts: Any
) -> Loop:
    """The stack: blocks in an order, with SReT's additions to their passes.

    Args:
        shape, order, parts: see :mod:`recurrence.papers`.
        recursion: what SReT adds.
        block: :class:`SReTBlock` or :class:`MixerBlock`.

    Raises:
        FieldError: see :meth:`Recursion.check` and :mod:`recurrence.papers`.
    """
    recursion.check(len(order))
    blocks = [block(shape, recursion, **parts) for _ in range(block_count(order))]
    own = [SReTPass(index, blocks[which].sublayers, shape, recursion) for index, which in enumerate(order)]
    return Loop(blocks, order, own)
