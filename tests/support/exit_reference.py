"""A reference for early exit in a decoder: every pass runs over all tokens so far, without a cache."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from recurrence.early_exit import moved
from recurrence.loop import Loop


class ExitReference:
    """Reads a text token by token with early exit, and keeps the input of every pass for every token.

    Args:
        loop: the passes.
        arguments: gives the arguments of `Loop.forward` for all states so far (B, L, C).
        threshold: the exit threshold.
    """

    def __init__(self, loop: Loop, arguments: Callable[[Tensor], dict[str, Any]], threshold: float):
        self.loop, self.arguments, self.threshold = loop, arguments, threshold
        self.inputs: list[Tensor | None] = [None] * loop.passes
        self.steps: list[float] = []
        self.ran = 0

    def read(self, x: Tensor) -> Tensor:
        """The state with which the next tokens (B, 1, C) leave."""
        left = False
        for index, earlier in enumerate(self.inputs):
            inputs = self.inputs[index] = x if earlier is None else torch.cat([earlier, x], dim=1)
            if left:
                continue  # later tokens attend to the state with which this one left
            which = self.loop.order[index]
            first = self.loop.order.index(which)
            first_inputs = {which: self.inputs[first]} if which in self.loop.inject and first < index else {}
            y = self.loop(inputs, run=(index,), first_inputs=first_inputs, **self.arguments(inputs))[:, -1:]
            self.steps += moved(x, y).tolist()
            left = bool((moved(x, y) < self.threshold).all())
            x, self.ran = y, self.ran + 1
        return x

    def reorder(self, order: Tensor) -> None:
        """Reorders the batch: entry i becomes entry order[i]."""
        self.inputs = [inputs.index_select(0, order) for inputs in self.inputs]


def some_exits(reference: ExitReference, x: Tensor) -> float:
    """A threshold that about a third of the steps on the tokens (B, T, C) fall below."""
    for t in range(x.size(1)):
        reference.read(x[:, t : t + 1])
    return 1.0001 * sorted(reference.steps)[len(reference.steps) // 3]
