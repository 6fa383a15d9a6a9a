"""What the papers' blocks have in common: sizes, the stored block, and what a pass owns.

:mod:`recurrence.papers` has one file per paper, which combines them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.attention import CrossAttention, SelfAttention
from recurrence.errors import FieldError
from recurrence.parts import FeedForward, Sublayer, Sum


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
            raise FieldError("norm_eps", self.norm_eps, "must be > 0 and < inf")
        if self.width % self.heads:
            raise FieldError("heads", self.heads, "must divide {width}", width=self.width)
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise FieldError(name, getattr(self, name), "must be a rate within [0, 1]")

    def norms(self, count: int, bias: bool = True) -> nn.ModuleList:
        """`count` LayerNorms."""
        return nn.ModuleList(nn.LayerNorm(self.width, self.norm_eps, bias=bias) for _ in range(count))


class Pass(nn.Module):
    """What a pass owns: its residual sums and its drop path. Papers add more in a subclass.

    Args:
        sublayers: number of residual sums; they are plain until :func:`recurrence.papers.admin.attach` replaces them.
        norms: LayerNorms of the pass, one per sublayer; None if they belong to the block.

    Attributes:
        drop_path: drops the branches of entire samples in training, (B, T, C) -> the same; None for never.
    """

    def __init__(self, sublayers: int, norms: nn.ModuleList | None = None):
        super().__init__()
        if norms is not None:
            self.norms = norms
        self.residuals = nn.ModuleList(Sum() for _ in range(sublayers))
        self.drop_path: nn.Module | None = None


class Block(nn.Module):
    """The parts of a stored block, None where it has no such part: self-attention, cross-attention in a decoder, FFN.

    A paper's block has a `forward` that combines them, as its equations do. Its arguments are x (B, T, C); `own`, what
    the pass owns; in a decoder `cross`, the arguments of :class:`recurrence.attention.CrossAttention`; and those of
    :class:`recurrence.attention.SelfAttention`.

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
        self.pre_norm = pre_norm
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
    def sublayers(self) -> int:
        """Residual sums of one pass."""
        return sum(part is not None for part in (self.self_attn, self.cross_attn, self.ffn))

    def contexts(self, memory: Tensor, passes: Sequence[Pass]) -> list[Tensor]:
        """Keys and values of the memory for passes of this block.

        All of them share one projection, unless a paper's passes have signals of their own on it.

        Args:
            memory: (B, S, memory width).
            passes: what these passes own.

        Returns:
            One tensor (B, S, 2 C) per pass.
        """
        return [self.cross_attn.kv(memory)] * len(passes)
