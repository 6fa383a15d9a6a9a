"""A text that a causal loop reads a few tokens at a time, and not necessarily through all passes at once."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recurrence.cache import Cache
from recurrence.loop import Loop


class Steps:
    """What a loop keeps of a text between two steps.

    Args:
        loop: the passes.
        room: tokens to make room for at once; beyond it the room doubles.
    """

    def __init__(self, loop: Loop, room: int = 32):
        self.loop, self.cache = loop, Cache(loop.passes, room)
        self._first_inputs: dict[int, Tensor] = {}

    @property
    def length(self) -> int:
        """Tokens that the first pass has read."""
        return self.cache.length

    def run(self, x: Tensor, passes: Sequence[int], **arguments: Any) -> Tensor:
        """Runs consecutive passes on the tokens that come next for them.

        Args:
            x: (B, T, C), the input of the first of these passes.
            passes: their indices; all of them have read as many tokens.
            **arguments: of :meth:`Loop.forward`.

        Returns:
            The state after the last of them, (B, T, C).
        """
        start, order = self.cache.lengths[passes[0]], self.loop.order
        end = start + x.size(1)
        known = {
            which: kept[:, start:end] for which, kept in self._first_inputs.items() if order.index(which) < passes[0]
        }
        found = dict(known)
        x, _ = self.loop(x, slots=self.cache.slots(), run=passes, first_inputs=found, **arguments)
        for which in found.keys() - known.keys():
            kept = self._first_inputs.get(which, found[which][:, :0])
            self._first_inputs[which] = torch.cat([kept, found[which]], dim=1)
        return x

    def rewind(self, length: int) -> None:
        """Forgets what stands behind the first `length` tokens."""
        self.cache.rewind(length)
        self._first_inputs = {which: kept[:, :length] for which, kept in self._first_inputs.items()}

    def reorder(self, order: Tensor) -> None:
        """Entry i becomes what entry order[i] was; the batch may shrink or grow. order: (new B,)."""
        self.cache.reorder(order)
        self._first_inputs = {which: kept.index_select(0, order) for which, kept in self._first_inputs.items()}
