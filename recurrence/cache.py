"""Incremental state: the keys and values of every pass, in one tensor.

A cache keyed by module is silently wrong as soon as a block runs twice. Here each pass has its slot; and because all
slots are one tensor, reordering the beams is one call, whatever the number of passes.
"""

import torch
from torch import Tensor


class Cache:
    """Keys and values of P passes, time first, (L, P, 2, B, C), with room to grow.

    Args:
        passes: P.
    """

    def __init__(self, passes: int):
        self.passes = passes
        self.length = 0
        self._filled: Tensor | None = None
        self._spare: Tensor | None = None

    def slots(self) -> list["Slot"]:
        return [Slot(self, index) for index in range(self.passes)]

    def write(self, index: int, keys_values: Tensor) -> Tensor:
        """Stores one step of a pass: (2, B, C); returns all its steps, this one included: (L, 2, B, C).

        Raises:
            RuntimeError: if gradients would have to flow through the cache.
        """
        if keys_values.requires_grad:
            raise RuntimeError("incremental decoding keeps no gradients: call it under torch.no_grad()")
        if self._filled is None or self.length == self._filled.size(0):
            self._grow(keys_values)
        self._filled[self.length, index] = keys_values
        return self._filled[: self.length + 1, index]

    def advance(self) -> None:
        """Ends a step, once every pass has written it."""
        self.length += 1

    def reorder(self, order: Tensor) -> None:
        """Entry i becomes what entry order[i] was; the batch may shrink or grow. order: (new B,)."""
        if self._filled is None:
            return
        steps, passes, two, _, width = self._filled.shape
        shape = (steps, passes, two, order.numel(), width)
        if self._spare is None or self._spare.shape != shape:
            self._spare = self._filled.new_empty(shape)
        torch.index_select(self._filled[: self.length], 3, order, out=self._spare[: self.length])
        self._filled, self._spare = self._spare, self._filled

    def _grow(self, keys_values: Tensor) -> None:
        room = keys_values.new_empty(max(32, 2 * self.length), self.passes, *keys_values.shape)
        if self._filled is not None:
            room[: self.length] = self._filled[: self.length]
        self._filled = room


class Slot:
    """The part of a :class:`Cache` that belongs to one pass."""

    def __init__(self, cache: Cache, index: int):
        self.cache, self.index = cache, index

    def write(self, keys_values: Tensor) -> Tensor:
        """See :meth:`Cache.write`."""
        return self.cache.write(self.index, keys_values)
