"""Positions inside self-attention: what a stack tells its blocks about the places of the tokens, at every pass.

Padding before a text does not change them, because they depend on distances only.
"""

from typing import Any

from torch import Tensor, nn

from recurrence import position
from recurrence.attention import causal_bias
from recurrence.eager import product_dtype
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.loop_state import LoopState

POSITIONS = ("sinusoidal", "learned", "relative", "rotary", "alibi", "none")


class AttentionPositions(nn.Module):
    """No positions inside attention, and the base of those that are."""

    adds_bias = False  # to the scores, so that a causal mask must be a bias, too

    def arguments(
        self, loop: Loop, x: Tensor, mask: Tensor | None, start: int = 0, state: LoopState | None = None
    ) -> dict[str, Any]:
        """Arguments of the loop.

        Args:
            loop: the passes.
            x: (B, T, C), tokens that follow `start` others.
            mask: added to the scores, broadcastable to (B, H, T, start + T); None for none.
            start: number of tokens before those of x.
            state: decoding state of the loop, which keeps what later steps use again; None for none.

        Returns:
            `self_bias`, and what the positions add.
        """
        return dict(self_bias=mask)

    def causal_arguments(
        self, loop: Loop, x: Tensor, padding: Tensor | None, start: int = 0, state: LoopState | None = None
    ) -> dict[str, Any]:
        """As :meth:`arguments`, under a causal mask; padding: (B, start + T) bool, None for no padding."""
        several = x.size(1) > 1
        needs_mask = padding is not None or (several and (self.adds_bias or start > 0))
        mask = causal_bias(start + x.size(1), x, padding, start) if needs_mask else None
        arguments = self.arguments(loop, x, mask, start, state)
        return dict(arguments, causal=arguments["self_bias"] is None)


class Rotary(AttentionPositions):
    """Queries and keys are rotated, see :func:`recurrence.position.rotate`.

    Args:
        width: D, that of a head; even.
    """

    def __init__(self, width: int):
        super().__init__()
        self.table = position.Table(position.rotary, width)

    def arguments(self, loop, x, mask, start=0, state=None):
        """See :meth:`AttentionPositions.arguments`."""
        rows = self.table.rows(start + x.size(1), like=x)[start:]
        return dict(self_bias=mask, rotary=rows.chunk(2, dim=-1))


class Alibi(AttentionPositions):
    """Scores fall with the distance, see :func:`recurrence.position.alibi`.

    Args:
        heads: H.
    """

    adds_bias = True

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads

    def arguments(self, loop, x, mask, start=0, state=None):
        """See :meth:`AttentionPositions.arguments`."""
        bias = position.alibi(self.heads, start + x.size(1), start, like=x).to(product_dtype(x))
        return dict(self_bias=bias if mask is None else bias + mask)


class Relative(AttentionPositions):
    """Scores depend on distances, see :mod:`recurrence.relative`.

    Keys of distances are projected once for each stored block, not once per pass, and kept while decoding.

    Args:
        width: C.
        causal: whether the mask hides later tokens, so that no key of theirs is needed.
    """

    adds_bias = True

    def __init__(self, width: int, causal: bool):
        super().__init__()
        self.table, self.causal = position.DistanceTable(width), causal

    def arguments(self, loop, x, mask, start=0, state=None):
        """See :meth:`AttentionPositions.arguments`."""
        length = start + x.size(1)
        keys = self._keys(loop, length, x) if state is None else self._kept(loop, length, x, state)
        return dict(self_bias=mask, distances=[keys[which] for which in loop.order])

    def _keys(self, loop: Loop, length: int, like: Tensor) -> list[Tensor | None]:
        """The keys of every stored block; None for a block without self-attention."""
        rows = self.table.upto(length, 0 if self.causal else 1 - length, like)
        return [None if block.self_attn is None else block.self_attn.relative(rows) for block in loop.blocks]

    def _kept(self, loop: Loop, length: int, like: Tensor, state: LoopState) -> list[Tensor | None]:
        if state.distances is None or state.farthest < length:
            state.farthest = max(32, 1 << (length - 1).bit_length())
            state.distances = self._keys(loop, state.farthest, like)
        return [None if keys is None else keys[..., state.farthest - length :] for keys in state.distances]


def attention_positions(kind: str, width: int, heads: int, causal: bool) -> AttentionPositions:
    """The positions inside attention of this kind, one of `POSITIONS`.

    Args:
        kind: "sinusoidal" and "learned" positions are added to the embedding, so attention sees none.
        width: C.
        heads: H.
        causal: whether each token only sees itself and earlier tokens.

    Raises:
        FieldError: for rotary positions, if the width of a head is odd.
    """
    if kind == "rotary":
        head = width // heads
        if head % 2:
            rule = f"needs an even head width, but {{width}} / {{heads}} is {head}"
            raise FieldError("position", kind, rule, width=width, heads=heads)
        return Rotary(head)
    if kind == "alibi":
        return Alibi(heads)
    return Relative(width, causal) if kind == "relative" else AttentionPositions()
