"""Incremental state: the keys and values of every pass, in one tensor.

A cache keyed by module is silently wrong if a block runs twice. Here each pass has a slot, and all slots are one
tensor, so that beam search reorders them in one call.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

Slot = Callable[[Tensor], tuple[Tensor, Tensor]]


class Cache:
    """Keys and values of P passes, time first, (L, P, 2, B, C), with room to grow.

    `lengths` has the number of tokens of each pass, at most that of the first.
    """

    def __init__(self, passes: int):
        self.lengths = [0] * passes
        self._filled: Tensor | None = None
        self._spare: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of tokens of the first pass, the maximum of all passes."""
        return self.lengths[0]

    def slots(self) -> list[Slot]:
        """The slot of each pass, which stores further tokens, see :meth:`write`."""
        return [partial(self.write, index) for index in range(len(self.lengths))]

    def write(self, index: int, keys_values: Tensor) -> tuple[Tensor, Tensor]:
        """Stores T more tokens of a pass, keys and values (2, B, T, C): those of all its L tokens, two views (B, L, C).

        Raises:
            RuntimeError: if gradients would have to flow through the cache.
        """
        if keys_values.requires_grad:
            raise RuntimeError("incremental decoding keeps no gradients: call it under torch.no_grad()")
        start = self.lengths[index]
        end = start + keys_values.size(2)
        if self._filled is None or end > self._filled.size(0):
            self._grow(end, keys_values)
        self._filled[start:end, index] = keys_values.permute(2, 0, 1, 3)
        self.lengths[index] = end
        return self._filled[:end, index, 0].transpose(0, 1), self._filled[:end, index, 1].transpose(0, 1)

    def rewind(self, length: int) -> None:
        """Drops all tokens after the first `length`."""
        self.lengths = [min(length, written) for written in self.lengths]

    def reorder(self, order: Tensor) -> None:
        """Reorders the batch: entry i becomes entry order[i], (new B,)."""
        if self._filled is None or stays(order, torch.arange(self._filled.size(3), device=order.device)):
            return  # greedy search and sampling ask for this order after every token
        steps, passes, two, _, width = self._filled.shape
        shape = (steps, passes, two, order.numel(), width)
        if self._spare is None or self._spare.shape != shape:
            self._spare = self._filled.new_empty(shape)
        torch.index_select(self._filled[: self.length], 3, order, out=self._spare[: self.length])
        self._filled, self._spare = self._spare, self._filled

    def _grow(self, needed: int, like: Tensor) -> None:
        _, batch, _, width = like.shape
        kept = 0 if self._filled is None else self._filled.size(0)
        grown = like.new_empty(max(32, 2 * kept, needed), len(self.lengths), 2, batch, width)
        if kept:
            grown[:kept] = self._filled
        self._filled, self._spare = grown, None


def stays(new: Tensor, old: Tensor) -> bool:
    """Whether two orders are known to be equal; never on a GPU, where comparing would wait for the device."""
    return new.device.type == "cpu" and torch.equal(new, old)
