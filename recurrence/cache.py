"""Incremental state: the keys and values of every pass, in one tensor.

A cache keyed by module is silently wrong as soon as a block runs twice. Here each pass has its slot; and because all
slots are one tensor, reordering the beams is one call, whatever the number of passes.
"""

import torch
from torch import Tensor


class Cache:
    """Keys and values of P passes, time first, (L, P, 2, B, C), with room to grow.

    A pass may be behind the passes before it: it writes where its own tokens end, see `lengths`.

    Args:
        passes: P.
        room: tokens to make room for at the first write, where their number is known; beyond it the room doubles.
    """

    def __init__(self, passes: int, room: int = 32):
        self.passes, self.room = passes, room
        self.lengths = [0] * passes
        self._filled: Tensor | None = None
        self._spare: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens that the first pass has written, which no pass is ahead of."""
        return self.lengths[0]

    def slots(self) -> list["Slot"]:
        return [Slot(self, index) for index in range(self.passes)]

    def write(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Stores the T tokens of a step of a pass, one or a whole prompt.

        Args:
            index: the pass.
            keys, values: (B, T, C).

        Returns:
            Keys and values of all tokens of the pass so far, these included: two views (B, L, C).

        Raises:
            RuntimeError: if gradients would have to flow through the cache.
        """
        if keys.requires_grad or values.requires_grad:
            raise RuntimeError("incremental decoding keeps no gradients: call it under torch.no_grad()")
        start = self.lengths[index]
        self.lengths[index] = end = start + keys.size(1)
        if self._filled is None or end > self._filled.size(0):
            self._grow(end, keys)
        fresh = self._filled[start:end, index]
        fresh[:, 0], fresh[:, 1] = keys.transpose(0, 1), values.transpose(0, 1)
        return self._filled[:end, index, 0].transpose(0, 1), self._filled[:end, index, 1].transpose(0, 1)

    def rewind(self, length: int) -> None:
        """Forgets what stands behind the first `length` tokens."""
        self.lengths = [min(length, written) for written in self.lengths]

    def reorder(self, order: Tensor) -> None:
        """Entry i becomes what entry order[i] was; the batch may shrink or grow. order: (new B,)."""
        if self._filled is None or stays(order, torch.arange(self._filled.size(3), device=order.device)):
            return  # greedy search and sampling reorder to the order that there is, after every token
        steps, passes, two, _, width = self._filled.shape
        shape = (steps, passes, two, order.numel(), width)
        if self._spare is None or self._spare.shape != shape:
            self._spare = self._filled.new_empty(shape)
        torch.index_select(self._filled[: self.length], 3, order, out=self._spare[: self.length])
        self._filled, self._spare = self._spare, self._filled

    def _grow(self, needed: int, like: Tensor) -> None:
        batch, _, width = like.shape
        kept = 0 if self._filled is None else self._filled.size(0)
        room = like.new_empty(max(self.room, 2 * kept, needed), self.passes, 2, batch, width)
        if kept:
            room[:kept] = self._filled
        self._filled, self._spare = room, None


def stays(new: Tensor, old: Tensor) -> bool:
    """Whether two orders are known to be equal. On a GPU they never are: the answer would have to be waited for."""
    return new.device.type == "cpu" and torch.equal(new, old)


class Slot:
    """The part of a :class:`Cache` that belongs to one pass."""

    def __init__(self, cache: Cache, index: int):
        self.cache, self.index = cache, index

    def write(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Cache.write`."""
        return self.cache.write(self.index, keys, values)
