"""Position tables: the published ones and fairseq's, computed in float64 and rounded once to the model's type.

They are neither parameters nor buffers, so checkpoints do not contain them.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


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
    """One of the two equal halves of the Universal Transformer's table: (length, C), float64.

    With 1-based position i, level j and feature k, `T_j[i, k] = f(i / 10000^(2k/C)) + f(j / 10000^(2k/C))`, f = sin
    for even k and cos for odd k; row p holds f at i = p + 1, so `T_j[i] = depth_time[i - 1] + depth_time[j - 1]`.

    Source: Dehghani et al. (arXiv:1807.03819), equations 6 and 7, as RingFormer's code evaluates them.
    Differs from the paper: the exponent is 2k/C with k up to C, so that wavelengths grow twice as fast.
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


def rotate(x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates each head [a, b], split in halves, to [a cos - b sin, b cos + a sin].

    Args:
        x: (..., T, C).
        heads: H.
        cos, sin: rows of :func:`rotary`, (T, D/2) or (B, T, D/2).

    Returns:
        (..., T, C).

    Differs from the paper, which rotates pairs of neighbours; LLaMA's published code rotates halves, as here.
    """
    a, b = x.unflatten(-1, (heads, 2, -1)).unbind(-2)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    return turned.to(x.dtype)  # under autocast the angles have a higher dtype


def alibi_slopes(heads: int, device: torch.device | None = None) -> Tensor:
    """The slope of each head, (H,), float64: 2^(-8h/H) for h = 1 .. H, if H is a power of two.

    Otherwise the slopes are the first H of the next power of two, every second one first.

    Source: ALiBi (arXiv:2108.12409), section 3, and its code for other numbers of heads.
    Differs from the paper's code: it takes the slopes of the power of two below first; this is the order of the code of
    Intra-Layer Recurrence (arXiv:2505.01855).
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
    before = padding.cumprod(dim=1).sum(dim=1, keepdim=True)
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

    def rows(self, length: int, like: Tensor) -> Tensor:
        """The rows of `length` tokens without padding, (length, C), in dtype and on the device of `like`."""
        return self._at_least(length + self.offset, like)[self.offset : self.offset + length]

    def _at_least(self, size: int, like: Tensor) -> Tensor:
        rows = self._rows
        if rows.size(0) < size or rows.dtype != like.dtype or rows.device != like.device:
            rows = self._make(max(128, 1 << (size - 1).bit_length()), like)
        return rows

    def _make(self, size: int, like: Tensor) -> Tensor:
        """Computes rows and caches them, except in a compiled graph, whose tensors may live in memory of its own.

        They are computed outside inference mode, because later training cannot use inference tensors.
        """
        if torch.compiler.is_compiling():
            return self.function(size, self.width).to(like)
        with torch.inference_mode(False):
            self._rows = self.function(size, self.width).to(device=like.device, dtype=like.dtype)
        return self._rows

    def forward(self, length: int, padding: Tensor | None, start: int, like: Tensor) -> Tensor:
        """Rows of the tokens from `start` on.

        Args:
            length: T.
            padding: (B, T) bool, or None for no padding.
            start: number of leading tokens to skip.
            like: gives dtype and device.

        Returns:
            (T - start, C) without padding, else (B, T - start, C).
        """
        rows = self.rows(length, like)
        if padding is None:
            return rows[start:]
        picked = rows[positions(padding)[:, start:]]
        return picked.masked_fill(padding[:, start:, None], 0) if self.blank_padding else picked


class LevelTable(Table):
    """The Universal Transformer's signals, which are added to the stream before each pass.

    Args:
        width: C.
        timed: whether the signals have the position; otherwise only the depth.
    """

    def __init__(self, width: int, timed: bool):
        super().__init__(depth_time, width)
        self.timed = timed

    def levels(self, passes: int, length: int, padding: Tensor | None, start: int, like: Tensor) -> list[Tensor]:
        """The signal of each pass.

        Args:
            passes: P.
            length, padding, start, like: see :meth:`Table.forward`.

        Returns:
            P times (length - start, C) without padding, else (B, length - start, C), or (C,) if it is not timed.
        """
        depths = list(self.rows(passes, like))
        if not self.timed:
            return depths
        position = self(length, padding, start, like)
        return [position + depth for depth in depths]


class DistanceTable(Table):
    """Looks up rows of :func:`distances`.

    Args:
        width: C.
    """

    def __init__(self, width: int):
        super().__init__(distances, width)

    def upto(self, length: int, last: int, like: Tensor) -> Tensor:
        """The rows of the distances length, length - 1, ... last, where last > -length: (length - last + 1, C)."""
        rows = self._at_least(2 * length, like)
        first = rows.size(0) // 2 - length
        return rows[first : first + length - last + 1]
