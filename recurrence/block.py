"""The parts of the papers' blocks: sizes, the residual sum around a sublayer, a stored block, and what a pass owns.

:mod:`recurrence.papers` has one file per paper, which combines them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.attention import CrossAttention, SelfAttention
from recurrence.dropout import dropout
from recurrence.errors import FieldError
from recurrence.ffn import FeedForward
from recurrence.residual import DropPath, Sum
from recurrence.signal import LevelSignal


@dataclass(frozen=True)
class Shape:
    """Sizes and rates of a stored block.

    Args:
        width: C.
        ffn_width: hidden width of the FFN.
        heads: H, a divisor of C.
        norm_eps: epsilon of the norms.
        dropout, attention_dropout, activation_dropout: rates on sublayer outputs, attention weights, hidden units.

    Raises:
        FieldError: where a value breaks its rule.
    """

    width: int
    ffn_width: int
    heads: int
    norm_eps: float = 1e-5
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0

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


class Sublayer(nn.Module):
    """A residual sum around a function: `norm(x + f(x))`, or pre-norm `x + f(norm(x))`.

    It has no parameters: the norm and the sum (`join`) belong to the block or to the pass, and are passed in.

    Args:
        dropout: rate on the output of the function.
        pre_norm: apply the norm before the function instead of after the sum.
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
        drop_path: rate at which training drops a branch for entire samples; None for never.
        norms: LayerNorms of the pass, one per sublayer; None if they belong to the block.
    """

    def __init__(self, sublayers: int, drop_path: float | None = None, norms: nn.ModuleList | None = None):
        super().__init__()
        if norms is not None:
            self.norms = norms
        self.residuals = nn.ModuleList(Sum() for _ in range(sublayers))
        self.drop_path = None if drop_path is None else DropPath(drop_path)

    def join(self, which: int, residuals: nn.ModuleList | None = None) -> Callable[[Tensor, Tensor], Tensor]:
        """The residual sum of a sublayer, with drop path; residuals replaces the pass's own sums."""
        residual = (residuals or self.residuals)[which]
        return residual if self.drop_path is None else lambda x, y: residual(x, self.drop_path(y))

    def term(self, name: str) -> LevelSignal | None:
        """The signal that the pass adds to a projection, one of :data:`recurrence.lowrank.PROJECTIONS`."""
        return None


class Block(nn.Module, ABC):
    """The parts of a stored block: self-attention, cross-attention in a decoder, FFN.

    A paper's block combines them in :meth:`run`.

    Args:
        shape: sizes and rates.
        memory_width: width of the input of cross-attention; None for an encoder.
        pre_norm: norm before each sublayer instead of after its residual sum.
        activation: applied to the FFN's hidden units.
        bias: whether attention and FFN have biases.
        ffn: whether there is an FFN.
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
        ffn: bool = True,
        ffn_dropout: float | None = None,
        relative: bool = False,
    ):
        super().__init__()
        self.self_attn = SelfAttention(shape.width, shape.heads, bias, shape.attention_dropout, relative)
        self.cross_attn = self.ffn = None
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
        return 1 + (self.cross_attn is not None) + (self.ffn is not None)

    def forward(
        self,
        x: Tensor,
        own: Pass,
        context: Tensor | None = None,
        slot: Any | None = None,
        self_bias: Tensor | None = None,
        cross_bias: Tensor | None = None,
        causal: bool = False,
        rotary: tuple[Tensor, Tensor] | None = None,
        distances: Tensor | None = None,
        record: list | None = None,
    ) -> Tensor:
        """One pass.

        Args:
            x: (B, T, C).
            own: the parameters of this pass.
            context: (B, S, 2 C), projected memory, see :meth:`CrossAttention.project`.
            slot: incremental state of this pass.
            self_bias: added to the scores of self-attention, broadcastable to (B, H, T, T).
            cross_bias: added to the scores of cross-attention, broadcastable to (B, H, T, S).
            causal, rotary, distances: see :class:`recurrence.attention.SelfAttention`.
            record: a list to which the weights of cross-attention, (B, T, S), are appended.

        Returns:
            (B, T, C).
        """

        def attend(n: Tensor, raw: Tensor | None = None, **added: LevelSignal | None) -> Tensor:
            return self.self_attn(n, raw, self_bias, causal, slot, rotary, distances, **added)

        def cross_attend(n: Tensor, raw: Tensor | None = None, **added: LevelSignal | None) -> Tensor:
            return self.cross_attn(n, context, raw, bias=cross_bias, record=record, **added)

        return self.run(x, own, attend, None if self.cross_attn is None else cross_attend)

    @abstractmethod
    def run(self, x: Tensor, own: Pass, attend: Callable, cross_attend: Callable | None) -> Tensor:
        """One pass, as the equations of the paper.

        Args:
            x: (B, T, C).
            own: the parameters of this pass.
            attend, cross_attend: attention, called with its input, the input of the level signals if that differs, and
                the pass's signals by projection; cross_attend is None in an encoder.
        """
