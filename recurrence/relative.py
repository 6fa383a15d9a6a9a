"""Relative positions: the score of a query and a key depends on their contents and on the distance between them.

With a head's query q and key k, the projected sinusoids r of their distance, and two learned vectors u and v, the score
is `((q + u) k + (q + v) r) / sqrt(D)`. Projection and learned vectors belong to the stored block.

Source: Transformer-XL (arXiv:1901.02860), section 3.3; in encoder-decoders, Csordas et al. (arXiv:2108.12284).
Differs from both: queries, keys and values may have biases, as in the rest of the block. The initialisation is the one
that the code of Csordas et al. defines for this layer and never calls; theirs starts from PyTorch's defaults.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class RelativeKeys(nn.Module):
    """The projection of distances, and the vectors u and v of every head: width C, a multiple of the heads H."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, width, bias=False)
        nn.init.xavier_uniform_(self.project.weight)
        self.content_bias = nn.Parameter(torch.zeros(width))  # u
        self.position_bias = nn.Parameter(torch.zeros(width))  # v

    def keys(self, sinusoids: Tensor) -> Tensor:
        """The keys of M distances: (M, C) -> (H, C/H, M)."""
        return self.project(sinusoids).unflatten(-1, (self.heads, -1)).permute(1, 2, 0)

    def forward(self, q: Tensor, keys: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """The queries that meet the contents of keys, and the scaled scores of positions.

        Args:
            q: (B, H, T, C/H), the queries of the last T of the tokens.
            keys: (H, C/H, M), see :meth:`keys`, of the distances `length`, `length` - 1, ... down to 0 or further.
            length: L, number of keys.

        Returns:
            q + u, (B, H, T, C/H), and the scores (B, H, T, L), undefined for distances below the last one.
        """
        u, v = (bias.to(q.dtype).unflatten(0, (self.heads, 1, -1)) for bias in (self.content_bias, self.position_bias))
        scores = ((q + v) * q.size(-1) ** -0.5).transpose(0, 1).flatten(1, 2) @ keys  # one product per head
        return q + u, by_key(scores.unflatten(1, (q.size(0), -1)).transpose(0, 1), length)


class KeptKeys:
    """What decoding keeps: for every stored block, the keys of all distances from the farthest so far down to 0."""

    keys: list[Tensor | None] | None = None
    farthest = 0

    def upto(self, length: int, new: Callable[[int], list[Tensor | None]]) -> list[Tensor | None]:
        """The keys of the distances `length` down to 0; `new` makes those from a farthest distance on."""
        if self.keys is None or self.farthest < length:
            self.farthest = max(32, 1 << (length - 1).bit_length())
            self.keys = new(self.farthest)
        return [None if keys is None else keys[..., self.farthest - length :] for keys in self.keys]


def by_key(scores: Tensor, length: int) -> Tensor:
    """From scores by distance to scores by key, a view: every row is shifted one column further than the row below.

    (..., T, M), of the last T queries and the distances `length`, `length` - 1, ..., to (..., T, length).

    Source: Transformer-XL (arXiv:1901.02860), appendix B.
    """
    queries, distances = scores.shape[-2:]
    # Query t and key j have distance `length` - c with c = T - t + j. Of a row of M, that is element t M + c, which is
    # element T + t (M - 1) + j: the elements after the first T, in rows of M - 1.
    return scores.flatten(-2)[..., queries:].unflatten(-1, (queries, distances - 1))[..., :length]
