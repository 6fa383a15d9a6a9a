"""The parts of the papers' blocks: sizes, FFN, residual sums, the stored block, and what a pass owns.

:mod:`recurrence.papers` has one file per paper, which combines them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.attention import CrossAttention, SelfAttention
from recurrence.dropout import dropout
from recurrence.errors import FieldError
from recurrence.signal import LevelSignal, project

# The projections of a block: name of a pass's term on it -> the layer, and how many projections its weight stacks.
PROJECTIONS = {
    "qkv": ("self_attn.qkv", 3),
    "up": ("ffn.up", 1),
    "out": ("self_attn.out", 1),
    "down": ("ffn.down", 1),
    "cross_q": ("cross_attn.q", 1),
    "cross_kv": ("cross_attn.kv", 2),
    "cross_out": ("cross_attn.out", 1),
}


def projections(block: nn.Module) -> dict[str, nn.Linear]:
    """Those that a block has, by the names of :data:`PROJECTIONS`."""
    names = [name for name, (place, _) in PROJECTIONS.items() if getattr(block, place.split(".")[0]) is not None]
    return {name: block.get_submodule(PROJECTIONS[name][0]) for name in names}


@dataclass(frozen=True)
class Shape:
    """Sizes and rates of a stored block.

    Raises:
        FieldError: where a value breaks its rule.
    """

    width: int  # C
    ffn_width: int  # hidden width of the FFN
    heads: int  # H, a divisor of C
    norm_eps: float = 1e-5  # epsilon of the norms
    dropout: float = 0.0  # rate on the outputs of sublayers
    attention_dropout: float = 0.0  # on attention weights
    activation_dropout: float = 0.0  # on hidden units

    def __post_init__(self):
        for name in ("width", "ffn_width", "heads"):
            if getattr(self, name) < 1:
                raise FieldError(name, getattr(self, name), "must be >= 1")
        if not 0 < self.norm_eps < float("inf"):
            raise FieldError("norm_eps", self.norm_eps, "must be > 0")
        if self.width % self.heads:
            raise FieldError("heads", self.heads, "must divide {width}", width=self.width)
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise FieldError(name, getattr(self, name), "must be a rate within [0, 1]")

    def norms(self, count: int, bias: bool = True) -> nn.ModuleList:
        """`count` LayerNorms."""
        return nn.ModuleList(nn.LayerNorm(self.width, self.norm_eps, bias=bias) for _ in range(count))


class FeedForward(nn.Module):
    """`W2 activation(W1 x)`.

    Args:
        width, hidden_width: of x and between the two products.
        activation: applied to the hidden units.
        bias: whether W1 and W2 have biases.
        dropout: rate on the hidden units.
    """

    def __init__(
        self,
        width: int,
        hidden_width: int,
        activation: Callable[[Tensor], Tensor] = F.relu,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.activation, self.dropout = activation, dropout
        self.up = nn.Linear(width, hidden_width, bias=bias)
        self.down = nn.Linear(hidden_width, width, bias=bias)

    def forward(
        self,
        x: Tensor,
        signal_input: Tensor | None = None,
        up_term: LevelSignal | None = None,
        down_term: LevelSignal | None = None,
    ) -> Tensor:
        """(..., C) -> (..., C).

        Args:
            x: (..., C).
            signal_input: (..., C), what `up_term` reads if it is not x.
            up_term, down_term: what the pass adds to W1 x and to the product with W2; None for nothing.
        """
        hidden = dropout(self.activation(project(self.up, x, up_term, signal_input)), self.dropout, self.training)
        return project(self.down, hidden, down_term)


class Sum(nn.Module):
    """A residual sum: `x + y`."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x: the stream, y: the branch, both (B, T, C) -> (B, T, C)."""
        return x + y

    def factors(self) -> tuple[Tensor | float, float]:
        """The factors of x, a number or (C,), and of y."""
        return 1.0, 1.0


class DropPath(nn.Module):
    """In training, drops a branch for entire samples and scales the others by 1 / (1 - rate).

    Source: Huang et al. (arXiv:1603.09382), section 3.
    """

    def __init__(self, rate: float):
        super().__init__()
        if not 0 <= rate <= 1:
            raise FieldError("drop_path", rate, "must be a rate within [0, 1]")
        self.rate, self.never, self.always = rate, rate == 0, rate == 1
        # A tensor, because each new number would recompile a compiled block; no buffer, to keep it out of checkpoints.
        self._keeps = torch.tensor(1 - rate, dtype=torch.float64, device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        if self.never or not self.training:
            return x
        if self.always:
            return x * 0
        keeps = self._keeps if isinstance(x, Tensor) else 1 - self.rate  # a traced graph would store the tensor
        chance = x.new_ones(x.shape[0], 1, 1) * keeps  # one draw per sample
        return x * (chance.bernoulli() / chance)


class Sublayer(nn.Module):
    """A function in the residual stream: `norm(x + f(x))`, or pre-norm `x + f(norm(x))`.

    It has no parameters: the norm and the sum (`join`) belong to the block or to the pass, and are passed in. The
    dropout rate is that of the function's output.
    """

    def __init__(self, dropout: float, pre_norm: bool):
        super().__init__()
        self.dropout, self.pre_norm = dropout, pre_norm

    def forward(
        self,
        x: Tensor,
        function: Callable[[Tensor], Tensor],
        norm: Callable[[Tensor], Tensor],
        join: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """(B, T, C) -> (B, T, C). join adds the branch to the stream."""
        y = function(norm(x) if self.pre_norm else x)
        x = join(x, dropout(y, self.dropout, self.training))
        return x if self.pre_norm else norm(x)


class Pass(nn.Module):
    """What a pass owns in every paper: its residual sums and its drop path. Papers add more in a subclass.

    Args:
        sublayers: number of residual sums; they are plain until :func:`recurrence.admin.attach` replaces them.
        norms: LayerNorms of the pass, one per sublayer; None if they belong to the block.
    """

    def __init__(self, sublayers: int, norms: nn.ModuleList | None = None):
        super().__init__()
        if norms is not None:
            self.norms = norms
        self.residuals = nn.ModuleList(Sum() for _ in range(sublayers))
        self.drop_path: DropPath | None = None

    def join(self, which: int, residuals: nn.ModuleList | None = None) -> Callable[[Tensor, Tensor], Tensor]:
        """The residual sum of a sublayer, with drop path; residuals replaces the pass's own sums."""
        residual = (residuals or self.residuals)[which]
        return residual if self.drop_path is None else lambda x, y: residual(x, self.drop_path(y))

    def term(self, name: str) -> LevelSignal | None:
        """The level signal or low-rank term that the pass adds to one of :data:`PROJECTIONS`; None for none."""
        return None


def set_drop_path(passes: Iterable[Pass], rates: Iterable[float]) -> None:
    """Lets each pass drop its branches in training, at a rate of its own."""
    for own, rate in zip(passes, rates, strict=True):
        own.drop_path = DropPath(rate)


class Block(nn.Module, ABC):
    """The parts of a stored block, None where it has no such part: self-attention, cross-attention in a decoder, FFN.

    A paper's block combines them in :meth:`run`.

    Args:
        shape: sizes and rates.
        memory_width: width of the input of cross-attention; None for an encoder.
        pre_norm: norm before each sublayer instead of after its residual sum.
        activation: applied to the FFN's hidden units.
        bias: whether attention and FFN have biases.
        self_attention, ffn: whether there is one.
        ffn_dropout: rate on the FFN's output; None for the shape's.
        relative: whether self-attention has relative positions, see :mod:`recurrence.relative`.

    Attributes:
        foldable: whether it is a plain layer after the parameters of a pass are folded in, see
            :mod:`recurrence.weights.unshare`.
    """

    foldable = False

    def __init__(
        self,
        shape: Shape,
        memory_width: int | None = None,
        pre_norm: bool = False,
        activation: Callable[[Tensor], Tensor] = F.relu,
        bias: bool = True,
        self_attention: bool = True,
        ffn: bool = True,
        ffn_dropout: float | None = None,
        relative: bool = False,
    ):
        super().__init__()
        self.self_attn = self.cross_attn = self.ffn = None
        if self_attention:
            self.self_attn = SelfAttention(shape.width, shape.heads, bias, shape.attention_dropout, relative)
        if memory_width is not None:
            self.cross_attn = CrossAttention(shape.width, shape.heads, memory_width, bias, shape.attention_dropout)
        if ffn:
            self.ffn = FeedForward(shape.width, shape.ffn_width, activation, bias, shape.activation_dropout)
        self.sublayer = Sublayer(shape.dropout, pre_norm)
        self.ffn_sublayer = Sublayer(shape.dropout if ffn_dropout is None else ffn_dropout, pre_norm)

    @property
    def pre_norm(self) -> bool:
        """Whether norms come before the sublayers."""
        return self.sublayer.pre_norm

    @property
    def sublayers(self) -> int:
        """Residual sums of one pass."""
        return sum(part is not None for part in (self.self_attn, self.cross_attn, self.ffn))

    def forward(
        self,
        x: Tensor,
        own: Pass,
        context: Tensor | None = None,
        cross_bias: Tensor | None = None,
        record: list | None = None,
        **attention: Any,
    ) -> Tensor:
        """One pass.

        Args:
            x: (B, T, C).
            own: the parameters of this pass.
            context, cross_bias, record: see :class:`recurrence.attention.CrossAttention`.
            **attention: see :class:`recurrence.attention.SelfAttention`.

        Returns:
            (B, T, C).
        """
        attend = cross_attend = None
        if self.self_attn is not None:
            attend = partial(self.self_attn, **attention)
        if self.cross_attn is not None:
            cross_attend = partial(self.cross_attn, context=context, cross_bias=cross_bias, record=record)
        return self.run(x, own, attend, cross_attend)

    @abstractmethod
    def run(self, x: Tensor, own: Pass, attend: Callable, cross_attend: Callable | None) -> Tensor:
        """One pass, as the equations of the paper.

        Args:
            x: (B, T, C).
            own: the parameters of this pass.
            attend, cross_attend: :class:`SelfAttention` and :class:`CrossAttention`, called with their input and, where
                the paper has them, `signal_input` and terms; None if the block has none.
        """
