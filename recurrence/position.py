"""Position tables, the published ones and fairseq's, and positions inside self-attention.

Tables are computed in float64 and rounded once to the model's type. Those of :class:`Table` are neither parameters nor
buffers, so checkpoints do not contain them; image models store theirs.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from recurrence.attention import causal_bias, product_dtype
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.relative import KeptKeys

POSITIONS = ("sinusoidal", "learned", "relative", "rotary", "alibi", "none")


def interleaved(length: int, width: int) -> Tensor:
    """pe[p, 2j] = sin(p / 10000^(2j/C)), pe[p, 2j+1] = cos(the same angle): (length, C), float64.

    Source: Vaswani et al. (arXiv:1706.03762), section 3.5; the table of RingFormer's code.
    """
    even = torch.arange(0, width, 2, dtype=torch.float64)
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10000 ** (even / width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]


def halved(length: int, width: int) -> Tensor:
    """Sines in the first half, cosines in the second, rates exp(-j ln 10000 / (C/2 - 1)): (length, C), float64.

    Source: fairseq's convention, in which the first real token has index pad + 1; the caller adds that offset.
    """
    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float64) * -(math.log(10000) / max(half - 1, 1)))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    table = torch.cat([angles.sin(), angles.cos()], dim=1)
    return torch.cat([table, table.new_zeros(length, width % 2)], dim=1)


def depth_time(length: int, width: int) -> Tensor:
    """The sinusoids of the Universal Transformer's table, for positions and for depths: (length, C), float64.

    With 1-based position i, level j and feature k, `T_j[i, k] = f(i / 10000^(2k/C)) + f(j / 10000^(2k/C))`, f = sin
    for even k and cos for odd k; row p holds f at i = p + 1, so `T_j[i] = depth_time[i - 1] + depth_time[j - 1]`.

    Source: the code of RingFormer (arXiv:2502.13181), after Dehghani et al. (arXiv:1807.03819), equations 6 and 7.
    Differs from Dehghani et al.: their features 2j (sin) and 2j + 1 (cos) have the exponent 2j/C; in the code, feature
    k has 2k/C, so that wavelengths grow twice as fast.
    """
    k = torch.arange(1, width + 1, dtype=torch.float64)
    angles = torch.arange(1, length + 1, dtype=torch.float64)[:, None] / 10000 ** (2 * k / width)
    return torch.where(k % 2 == 0, angles.sin(), angles.cos())


def distances(length: int, width: int) -> Tensor:
    """Sines, then cosines, of d / 10000^(2j/C) for d = length/2, ..., 1 - length/2: (length, C), float64; even length.

    Source: Transformer-XL (arXiv:1901.02860), section 3.3, and its code.
    """
    even = torch.arange(0, width, 2, dtype=torch.float64)
    angles = torch.arange(length // 2, -length // 2, -1, dtype=torch.float64)[:, None] / 10000 ** (even / width)
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width]


def rotary(length: int, width: int) -> Tensor:
    """Cosines, then sines, of the angles p * 10000^(-2m/D): (length, D), float64, for heads of width D.

    Source: RoFormer (arXiv:2104.09864), section 3.4.2.
    """
    even = torch.arange(0, width, 2, dtype=torch.float64)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * 10000 ** (-even / width)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def alibi_slopes(heads: int, device: torch.device) -> Tensor:
    """The slope of each head, (H,), float64: 2^(-8h/H) for h = 1 .. H, if H is a power of two.

    Otherwise the slopes are the first H of the next power of two, every second one first.

    Source: ALiBi (arXiv:2108.12409), section 3, and its code for other numbers of heads.
    """
    power = 1 << (heads - 1).bit_length()
    slopes = 2.0 ** (-8 * torch.arange(1, power + 1, dtype=torch.float64, device=device) / power)
    return slopes if power == heads else torch.cat([slopes[1::2], slopes[::2]])[:heads]


def alibi(heads: int, length: int, start: int, like: Tensor) -> Tensor:
    """-slope_h |key - query|, added to the scores: (1, H, length - start, length), queries from `start` on.

    Source: ALiBi (arXiv:2108.12409), section 3. For encoders, which it does not treat, distances count in both
    directions.
    """
    places = torch.arange(length, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
    apart = (places - places[start:, None]).abs()
    slopes = alibi_slopes(heads, like.device).to(apart.dtype)
    return (-slopes[:, None, None] * apart).to(like.dtype)[None]


def positions(padding: Tensor) -> Tensor:
    """Index of each token in its sentence, from 0, not counting padding before it: (B, T) bool -> (B, T).

    Padding before the sentence gets 0; padding after it continues the count, as in the published code.
    """
    before = (~padding).cumsum(dim=1).eq(0).sum(dim=1, keepdim=True)
    return (torch.arange(padding.size(1), device=padding.device) - before).clamp_(min=0)


class Table(nn.Module):
    """Looks up rows of a table function, in the dtype and on the device of the model; grows on demand.

    Args:
        function: (length, width) -> float64 table.
        width: C.
        offset: row of the first token.
        blank_padding: give padding zeros, as in fairseq, instead of a row.
    """

    def __init__(
        self, function: Callable[[int, int], Tensor], width: int, offset: int = 0, blank_padding: bool = False
    ):
        super().__init__()
        self.function, self.width, self.offset, self.blank_padding = function, width, offset, blank_padding
        self._rows = torch.empty(0)

    def _at_least(self, size: int, like: Tensor) -> Tensor:
        """At least `size` rows; cached, except in a compiled graph, whose tensors may live in memory of its own.

        An exported graph computes as many as it needs, as their number may change.
        """
        if torch.compiler.is_exporting():
            return self.function(size, self.width).to(like)
        rows = self._rows
        if rows.size(0) < size or rows.dtype != like.dtype or rows.device != like.device:
            size = max(128, 1 << (size - 1).bit_length())
            if torch.compiler.is_compiling():
                return self.function(size, self.width).to(like)
            with torch.inference_mode(False):  # later training cannot use inference tensors
                self._rows = rows = self.function(size, self.width).to(device=like.device, dtype=like.dtype)
        return rows

    def forward(self, length: int, padding: Tensor | None, start: int, like: Tensor) -> Tensor:
        """Rows of the tokens from `start` on, in dtype and on the device of `like`.

        Args:
            length: T.
            padding: (B, T) bool, or None for no padding.
            start: number of leading tokens to skip.
            like: any tensor.

        Returns:
            (T - start, C) without padding, else (B, T - start, C).
        """
        rows = self._at_least(length + self.offset, like)[self.offset :]
        if padding is None:
            return rows[start:length]
        picked = rows[positions(padding)[:, start:]]
        return picked.masked_fill(padding[:, start:, None], 0) if self.blank_padding else picked


class LevelTable(Table):
    """The Universal Transformer's signals, which are added to the stream before each pass.

    Args:
        width: C.
        with_position: whether the signals have the position; otherwise only the depth.
    """

    def __init__(self, width: int, with_position: bool):
        super().__init__(depth_time, width)
        self.with_position = with_position

    def levels(self, passes: int, length: int, padding: Tensor | None, start: int, like: Tensor) -> list[Tensor]:
        """The signal of each of the P passes; other arguments as in :meth:`Table.forward`.

        Returns:
            P times (length - start, C) without padding, else (B, length - start, C), or (C,) without the position.
        """
        depths = list(self(passes, None, 0, like))
        if not self.with_position:
            return depths
        position = self(length, padding, start, like)
        return [position + depth for depth in depths]


class DistanceTable(Table):
    """Looks up rows of :func:`distances`, of the width C."""

    def __init__(self, width: int):
        super().__init__(distances, width)

    def upto(self, length: int, last: int, like: Tensor) -> Tensor:
        """The rows of the distances length, length - 1, ... last, where last > -length: (length - last + 1, C)."""
        rows = self._at_least(2 * length, like)
        first = rows.size(0) // 2 - length
        return rows[first : first + length - last + 1]


class AttentionPositions(nn.Module):
    """The positions that a stack passes to its blocks at every pass. This base class has none.

    Padding before a text does not change positions inside attention, because they depend on distances only.
    """

    adds_bias = False  # to the scores, so that a causal mask must be a bias, too

    def arguments(
        self,
        loop: Loop,
        x: Tensor,
        mask: Tensor | None,
        start: int = 0,
        kept: KeptKeys | None = None,
        passes: int | None = None,
    ) -> dict[str, Any]:
        """Arguments of the loop: `self_bias`, and what the positions add.

        Args:
            loop: the passes.
            x: (B, T, C), tokens that follow `start` others.
            mask: added to the scores, broadcastable to (B, H, T, start + T); None for none.
            start: number of tokens before those of x.
            kept: while decoding, the keys of distances that later steps use again; None otherwise.
            passes: their number, see :meth:`Loop.indices`; None for all.
        """
        return dict(self_bias=mask)

    def causal_arguments(
        self, loop: Loop, x: Tensor, padding: Tensor | None, start: int, kept: KeptKeys | None, passes: int | None
    ) -> dict[str, Any]:
        """As :meth:`arguments`, under a causal mask; padding: (B, start + T) bool, None for no padding."""
        several = x.size(1) > 1
        needs_mask = padding is not None or (several and (self.adds_bias or start > 0))
        mask = causal_bias(start + x.size(1), x, padding, start) if needs_mask else None
        arguments = self.arguments(loop, x, mask, start, kept, passes)
        return dict(arguments, causal=several and arguments["self_bias"] is None)


class Rotary(AttentionPositions):
    """Queries and keys are rotated, see :func:`recurrence.attention.rotate`; heads of the even width D."""

    def __init__(self, width: int):
        super().__init__()
        self.table = Table(rotary, width)

    def arguments(self, loop, x, mask, start=0, kept=None, passes=None):
        rows = self.table(start + x.size(1), None, start, like=x)
        return dict(self_bias=mask, rotary=rows.chunk(2, dim=-1))


class Alibi(AttentionPositions):
    """Scores fall with the distance, see :func:`alibi`; H heads."""

    adds_bias = True

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads

    def arguments(self, loop, x, mask, start=0, kept=None, passes=None):
        bias = alibi(self.heads, start + x.size(1), start, like=x).to(product_dtype(x))
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
        self.table, self.causal = DistanceTable(width), causal

    def arguments(self, loop, x, mask, start=0, kept=None, passes=None):
        length = start + x.size(1)
        if kept is None:
            keys = self._keys(loop, length, x)
        else:
            keys = kept.upto(length, lambda farthest: self._keys(loop, farthest, x))
        of_passes = [keys[loop.order[index]] for index in loop.indices(passes)]
        return dict(self_bias=mask, per_pass=dict(distance_keys=of_passes))

    def _keys(self, loop: Loop, length: int, like: Tensor) -> list[Tensor | None]:
        """The keys of every stored block; None for a block without self-attention."""
        rows = self.table.upto(length, 0 if self.causal else 1 - length, like)
        return [None if block.self_attn is None else block.self_attn.relative.keys(rows) for block in loop.blocks]


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
