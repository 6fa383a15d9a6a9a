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
    """Keys and values of P passes, time first, (L, P, 2, B, H, C/H), with room to grow.

    Attributes:
        length: number of tokens that all passes have read; a step writes its tokens to every slot, then adds them here.
        slots: the slot of each pass, which stores further tokens, see :meth:`write`.
    """

    def __init__(self, passes: int):
        self.slots: list[Slot] = [partial(self.write, index) for index in range(passes)]
        self.length = 0
        self._filled: Tensor | None = None
        self._spare: Tensor | None = None

    def write(self, index: int, keys_values: Tensor) -> tuple[Tensor, Tensor]:
        """Stores the T tokens of a step, keys and values (2, B, H, T, C/H), in a slot.

        Returns:
            The keys and the values of all its L tokens, two views (B, H, L, C/H).

        Raises:
            RuntimeError: if gradients would have to flow through the cache.
        """
        if keys_values.requires_grad:
            raise RuntimeError("incremental decoding keeps no gradients: call it under torch.no_grad()")
        end = self.length + keys_values.size(3)
        if self._filled is None or end > self._filled.size(0):
            self._grow(end, keys_values)
        self._filled[self.length : end, index] = keys_values.permute(3, 0, 1, 2, 4)
        return self._filled[:end, index].permute(1, 2, 3, 0, 4).unbind(0)

    def reorder(self, order: Tensor) -> None:
        """Reorders the batch: entry i becomes entry order[i], (new B,)."""
        if self._filled is None or stays(order, torch.arange(self._filled.size(3), device=order.device)):
            return  # greedy search and sampling ask for this order after every token
        shape = (*self._filled.shape[:3], order.numel(), *self._filled.shape[4:])
        if self._spare is None or self._spare.shape != shape:
            self._spare = self._filled.new_empty(shape)
        torch.index_select(self._filled[: self.length], 3, order, out=self._spare[: self.length])
        self._filled, self._spare = self._spare, self._filled

    def _grow(self, needed: int, like: Tensor) -> None:
        _, batch, heads, _, width = like.shape
        kept = 0 if self._filled is None else self._filled.size(0)
        grown = like.new_empty(max(32, 2 * kept, needed), len(self.slots), 2, batch, heads, width)
        if kept:
            grown[:kept] = self._filled
        self._filled, self._spare = grown, None


def stays(new: Tensor, old: Tensor) -> bool:
    """Whether two orders are known to be equal; never on a GPU, where comparing would wait for the device."""
    return new.device.type == "cpu" and torch.equal(new, old)
