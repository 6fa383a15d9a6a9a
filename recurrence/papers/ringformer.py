"""RingFormer: one block runs in all passes, and level signals show it at which depth it runs.

Pass i owns its LayerNorms and low-rank level signals `M_i x`, which are added to queries, keys and values and to the
input of the FFN. Everything else is shared.

Source: RingFormer (arXiv:2502.13181), sections 3.1 and 3.2, Equations 5 to 7; Table 4 for the variants.
Differs from the paper: several blocks may be stored, and run in any order; each pass owns its norms and signals,
whatever block it runs. The paper's text calls A, which starts at zero, the down-projection; in its formula and in the
published code A projects up, as here. It gives no distribution for the random start, which it found less stable; here
both factors start like PyTorch's Linear, because M would stay near zero with a random `up` and a `down` of 1e-6.
Differs from the published code: M is never multiplied out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.block import Block, Pass, Shape
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.order import Order, block_count


class LevelSignal(nn.Module):
    """The signals of one pass on `targets` projections of the same input, stacked in one layer (3 for Q, K and V).

    M = A B^T (Equation 5) is low-rank: `down` is B^T and maps to the rank, `up` is A^T and maps back.

    With init "zero", every signal starts at exactly 0: `up` is 0 and `down` normal with deviation 1e-6; a full-rank M
    is 0. "random" draws all of them uniformly within 1 / sqrt(in), like PyTorch's Linear.

    Args:
        targets: K, number of stacked projections.
        width: C, width of the input.
        out_width: width of each projection.
        rank: rank of each M; None for full rank.
        before: True for `W (x + M x)`, with M of width x width; False for `W x + M x`, with M of out_width x width.
        init: "zero" or "random".
    """

    def __init__(self, targets: int, width: int, out_width: int, rank: int | None, before: bool, init: str = "zero"):
        super().__init__()
        self.before, self.targets, self.rank = before, targets, rank
        target_width = width if before else out_width
        if rank is None:
            self.full = nn.Parameter(torch.zeros(targets, target_width, width))
        else:
            self.up = nn.Parameter(torch.zeros(targets, rank, target_width))
            self.down = nn.Parameter(torch.randn(targets, rank, width) * 1e-6)
        if init == "random":
            for name, factor in self.named_parameters():
                bound = (rank if name == "up" else width) ** -0.5
                nn.init.uniform_(factor, -bound, bound)

    def matrix(self) -> Tensor:
        """M of every target, multiplied out: (K, out, C)."""
        return self.full if self.rank is None else self.up.transpose(1, 2) @ self.down

    def forward(self, source: Tensor) -> Tensor:
        """M of every target times the source: (B, T, C) -> (B, T, K * out), or (B, T, K * C) before the layer."""
        if self.rank is None:
            return F.linear(source, self.full.flatten(0, 1))
        low = F.linear(source, self.down.flatten(0, 1))
        if self.targets == 1:
            return low @ self.up[0]
        # One batched product of all targets.
        stacked = low.unflatten(-1, (self.targets, -1)).flatten(0, -3).transpose(0, 1) @ self.up
        return stacked.transpose(0, 1).flatten(1).unflatten(0, low.shape[:-1])

    def project(self, layer: Callable[[Tensor], Tensor], x: Tensor, source: Tensor) -> Tensor:
        """`layer(x) + M source`, or `layer(x + M source)` with a signal before the layer.

        Args:
            layer: the stacked projections, (..., C) -> (..., K * out). It is called once, but once per target with a
                signal before it, because each target then has an input of its own.
            x: (B, T, C), input of the layer.
            source: (B, T, C), what the signal reads: x, or in a pre-norm block the stream before the norm.

        Returns:
            (B, T, K * out).
        """
        signal = self(source)
        if not self.before:
            return layer(x) + signal
        if self.targets == 1:
            return layer(x + signal)
        inputs = (x + each for each in signal.chunk(self.targets, dim=-1))
        return torch.cat([layer(each).chunk(self.targets, -1)[target] for target, each in enumerate(inputs)], dim=-1)


@dataclass(frozen=True)
class Signals:
    """Which level signals a pass owns."""

    rank: int | None  # of M; None stores M itself (the full-rank row of Table 4)
    attention_signal: str | None = "after"  # W x + M x for Q, K and V, "before" for W (x + M x); None for none
    ffn_signal: str | None = "before"  # W_up (x + M x), "inside" for W_up x + M x; None for none
    cross_attention_signal: str | None = None  # like attention_signal (none in the paper, section 3.2.2)
    signal_init: str = "zero"  # starts every M at 0, "random" starts its factors at random

    def check(self, width: int, pre_norm: bool) -> None:
        """Raises FieldError if the rank is not in 1 .. width, or a pre-norm block has a signal before attention."""
        if self.rank is not None and not 1 <= self.rank <= width:
            raise FieldError("rank", self.rank, "must be >= 1 and <= {width}", width=width)
        for name in ("attention_signal", "cross_attention_signal"):
            if pre_norm and getattr(self, name) == "before":
                raise FieldError(name, "before", "a signal before the projection needs a post-norm block")

    def new(self, place: str | None, targets: int, width: int, out_width: int) -> LevelSignal | None:
        """New signals of a pass on `targets` stacked projections of the same input, each width -> out_width."""
        if place is None:
            return None
        return LevelSignal(targets, width, out_width, self.rank, place == "before", self.signal_init)


NO_SIGNALS = Signals(None, attention_signal=None, ffn_signal=None)


class RingFormerPass(Pass):
    """What a pass owns: LayerNorms and level signals (section 3.2)."""

    def __init__(self, block: "RingFormerBlock", shape: Shape, signals: Signals):
        super().__init__(block.sublayers, shape.norms(block.sublayers))
        width = shape.width
        self.qkv_signal = signals.new(signals.attention_signal, 3, width, width)
        self.cross_q_signal = self.cross_kv_signal = None
        if block.cross_attn is not None:
            place, memory_width = signals.cross_attention_signal, block.cross_attn.kv.in_features
            self.cross_q_signal = signals.new(place, 1, width, width)
            self.cross_kv_signal = signals.new(place, 2, memory_width, width)
        self.ffn_signal = signals.new(signals.ffn_signal, 1, width, shape.ffn_width)


class RingFormerBlock(Block):
    """A block that several passes run; post-norm in translation, pre-norm for images."""

    foldable = True

    def forward(self, x: Tensor, own: RingFormerPass, cross: dict | None = None, **attention: Any) -> Tensor:
        """`x <- LN_i1(x + attention(x; M_i x))`, `x <- LN_i2(x + FFN(x + M_i x))`; the stream itself gets no signal.

        M_i stands for the paper's M_Qi, M_Ki and M_Vi, one for each projection (Equation 6), and M_Fi (Equation 7).
        Pre-norm, for images: `x <- x + attention(LN_i1 x; M_i x)`, `x <- x + FFN(LN_i2(x + M_i x))`. Below, n is the
        sublayer's input: x, or its norm if pre-norm. Signals read the stream, x or s. A signal on the keys and values
        of cross-attention is applied where the memory is projected, see :meth:`contexts`.
        """
        norms, add, drop = own.norms, own.residuals, own.drop_path
        attn, cross_attn, ffn = self.self_attn, self.cross_attn, self.ffn
        on_qkv, on_q, on_ffn = own.qkv_signal, own.cross_q_signal, own.ffn_signal
        x = self.sublayer(
            x, lambda n: attn(n, on_qkv and on_qkv.project(attn.qkv, n, x), **attention), norms[0], add[0], drop
        )
        if cross_attn is not None:
            x = self.sublayer(
                x, lambda n: cross_attn(n, on_q and on_q.project(cross_attn.q, n, x), **cross), norms[1], add[1], drop
            )
        norm = norms[-1]
        if self.pre_norm and on_ffn and on_ffn.before:  # as the published image models: added to the norm's input
            return self.ffn_sublayer(x, ffn, lambda s: on_ffn.project(norm, s, s), add[-1], drop)
        return self.ffn_sublayer(x, lambda n: ffn(n, on_ffn and on_ffn.project(ffn.up, n, x)), norm, add[-1], drop)

    def contexts(self, memory: Tensor, passes: Sequence[RingFormerPass]) -> list[Tensor]:
        """See :meth:`recurrence.block.Block.contexts`; a pass with a signal on it has a projection of its own."""
        if passes[0].cross_kv_signal is None:
            return [self.cross_attn.kv(memory)] * len(passes)
        return [own.cross_kv_signal.project(self.cross_attn.kv, memory, memory) for own in passes]


def ringformer(shape: Shape, order: Order, signals: Signals, **parts: Any) -> Loop:
    """The stack: stored blocks in an order, which is all 0 in the paper.

    Args:
        shape, order, parts: see :mod:`recurrence.papers`.
        signals: the level signals of every pass.

    Raises:
        FieldError: see :meth:`Signals.check` and :mod:`recurrence.papers`.
    """
    blocks = [RingFormerBlock(shape, **parts) for _ in range(block_count(order))]
    signals.check(shape.width, blocks[0].pre_norm)
    return Loop(blocks, order, [RingFormerPass(blocks[which], shape, signals) for which in order])
