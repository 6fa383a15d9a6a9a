"""Decoding state of a loop. Its passes may have read different numbers of tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recurrence.cache import Cache
from recurrence.loop import Loop


class LoopState:
    """Decoding state of a loop: its cache, and the inputs that `inject` needs again.

    Args:
        loop: the passes.
    """

    def __init__(self, loop: Loop):
        self.loop, self.cache = loop, Cache(loop.passes)
        self._first_inputs: dict[int, Tensor] = {}
        self.distances: list[Tensor | None] | None = None  # of relative positions: the blocks' keys of distances
        self.farthest = 0  # from this one down to 0

    @property
    def length(self) -> int:
        """Number of tokens that the first pass has read."""
        return self.cache.length

    def run(self, x: Tensor, passes: Sequence[int], **arguments: Any) -> Tensor:
        """Runs consecutive passes on their next tokens.

        Args:
            x: (B, T, C), the input of the first of these passes.
            passes: their indices; they must have read the same number of tokens.
            **arguments: arguments of :meth:`Loop.forward`.

        Returns:
            The state after the last of these passes, (B, T, C).
        """
        start, order = self.cache.lengths[passes[0]], self.loop.order
        end = start + x.size(1)
        known = {
            which: kept[:, start:end] for which, kept in self._first_inputs.items() if order.index(which) < passes[0]
        }
        first_inputs = dict(known)
        x = self.loop(x, slots=self.cache.slots(), passes=passes, first_inputs=first_inputs, **arguments)
        for which in first_inputs.keys() - known.keys():
            new = first_inputs[which]
            self._first_inputs[which] = torch.cat([self._first_inputs.get(which, new[:, :0]), new], dim=1)
        return x

    def rewind(self, length: int) -> None:
        """Drops all tokens after the first `length`."""
        self.cache.rewind(length)
        self._first_inputs = {which: kept[:, :length] for which, kept in self._first_inputs.items()}

    def reorder(self, order: Tensor) -> None:
        """Reorders the batch: entry i becomes entry order[i], (new B,)."""
        self.cache.reorder(order)
        self._first_inputs = {which: kept.index_select(0, order) for which, kept in self._first_inputs.items()}
