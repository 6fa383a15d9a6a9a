"""RingFormer: one block runs in all passes, and level signals show it at which depth it runs.

Pass i owns its LayerNorms and low-rank level signals `M_i x`, which are added to queries, keys and values and to the
input of the FFN. Everything else is shared.

Source: RingFormer (arXiv:2502.13181), sections 3.1 and 3.2, Equations 5 to 7; Table 4 for the variants.
Differs from the published code: M is multiplied out only for many tokens, see :mod:`recurrence.signal`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from recurrence.block import Block, Pass, Shape
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.signal import LevelSignal


@dataclass(frozen=True)
class Signals:
    """Which level signals a pass owns."""

    rank: int | None  # of M; None stores M itself (the full-rank row of Table 4)
    attention_signal: str | None = "after"  # W x + M x for Q, K and V, "before" for W (x + M x); None for none
    ffn_signal: str | None = "before"  # W1 (x + M x) in the FFN, "inside" for W1 x + M x; None for none
    cross_attention_signal: str | None = None  # like attention_signal (none in the paper, section 3.2.2)
    signal_init: str = "zero"  # starts every M at 0, "random" starts its factors at random

    def check(self, width: int, pre_norm: bool) -> None:
        """Raises FieldError if the rank is not in 1 .. width, or a pre-norm block has a signal before a projection."""
        if self.rank is not None and not 1 <= self.rank <= width:
            raise FieldError("rank", self.rank, "must be >= 1 and <= {width}", width=width)
        for name in ("attention_signal", "cross_attention_signal"):
            if pre_norm and getattr(self, name) == "before":
                raise FieldError(name, "before", "a signal before the projection needs a post-norm block")

    def new(self, place: str | None, targets: int, width: int, out_width: int) -> LevelSignal | None:
        """New signals of a pass on so many stacked projections of the same input, each width -> out_width."""
        if place is None:
            return None
        return LevelSignal(targets, width, out_width, self.rank, place == "before", self.signal_init)


class RingFormerPass(Pass):
    """What a pass owns: LayerNorms and level signals (section 3.2)."""

    def __init__(self, block: "RingFormerBlock", shape: Shape, signals: Signals | None):
        super().__init__(block.sublayers, shape.norms(block.sublayers))
        width = shape.width
        self.qkv_signal = self.cross_q_signal = self.cross_kv_signal = self.ffn_signal = None
        if signals is None:
            return
        self.qkv_signal = signals.new(signals.attention_signal, 3, width, width)
        if block.cross_attn is not None:
            place, memory_width = signals.cross_attention_signal, block.cross_attn.kv.in_features
            self.cross_q_signal = signals.new(place, 1, width, width)
            self.cross_kv_signal = signals.new(place, 2, memory_width, width)
        self.ffn_signal = signals.new(signals.ffn_signal, 1, width, shape.ffn_width)

    def term(self, name: str) -> LevelSignal | None:
        """See :meth:`Pass.term`; the signal of W1, the projection "up", is named after the FFN."""
        return getattr(self, "ffn_signal" if name == "up" else f"{name}_signal", None)


class RingFormerBlock(Block):
    """The block that all passes run; post-norm in translation, pre-norm for images."""

    foldable = True

    def run(self, x: Tensor, own: RingFormerPass, attend: Callable, cross_attend: Callable | None) -> Tensor:
        """`x <- LN_i1(x + attention(x; M_i1 x))`, `x <- LN_i2(x + FFN(x + M_i2 x))`; the stream itself gets no signal.

        Pre-norm, for images: `x <- x + attention(LN_i1 x; M_i1 x)`, `x <- x + FFN(LN_i2(x + M_i2 x))`. Below, n is the
        sublayer's input: x, or its norm if pre-norm. Signals read x. A signal on the keys and values of cross-attention
        is applied where the memory is projected, see :meth:`recurrence.causal.CausalStack.project`.
        """
        x = self.sublayer(x, lambda n: attend(n, x, qkv_term=own.qkv_signal), own.norms[0], own.join(0))
        if cross_attend is not None:
            x = self.sublayer(x, lambda n: cross_attend(n, x, q_term=own.cross_q_signal), own.norms[1], own.join(1))
        signal, norm = own.ffn_signal, own.norms[-1]
        if self.pre_norm and signal is not None and signal.before:

            def norm_with_signal(s: Tensor) -> Tensor:
                """As the published image models: the signal is added to the input of the norm."""
                return norm(s + signal(s.flatten(0, 1)).view_as(s))

            return self.ffn_sublayer(x, self.ffn, norm_with_signal, own.join(-1))
        return self.ffn_sublayer(x, lambda n: self.ffn(n, x, up_term=signal), norm, own.join(-1))


def ringformer(shape: Shape, passes: int, signals: Signals | None, **parts: Any) -> Loop:
    """One stored block that runs in all passes; `signals` is None for none. The rest is in :mod:`recurrence.papers`."""
    block = RingFormerBlock(shape, **parts)
    if signals is not None:
        signals.check(shape.width, block.pre_norm)
    return Loop([block], (0,) * passes, [RingFormerPass(block, shape, signals) for _ in range(passes)])
