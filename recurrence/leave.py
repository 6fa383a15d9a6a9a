"""Early exit without a trained gate: the loop ends at the first pass that hardly moves the state.

How far a pass moves a text or an image is the length of its step, as a share of the length of the state:
`|x_after - x_before| / |x_before|`, over all tokens and features. Below the threshold the state is what the passes
that follow would make of it, more or less.

In a text that is read step by step, later tokens attend at every pass to what came before, also at passes that an
earlier token has not run: the state with which that token left takes its place there. Such tokens run the pass when
one behind them gets there, together with it, so that they cost no step of their own.

Source: CALM (arXiv:2207.07061), sections 3.3 (saturation of the state) and 3.4 (propagation of the last state).
Differs from the paper: the measure is the length of the step instead of the cosine; all texts of a batch leave
together; keys and values of a pass that a token has not run are made only if a later token runs it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.steps import Steps
from recurrence.tally import Tally


def moved(before: Tensor, after: Tensor, padding: Tensor | None = None) -> Tensor:
    """How far a pass moves each entry of a batch, relative to where it was: (B,).

    Args:
        before, after: the state on both sides of the pass, (B, T, C).
        padding: (B, T) bool, tokens that do not count; None for none.
    """
    step = after - before
    if padding is not None:
        step, before = (x.masked_fill(padding[:, :, None], 0) for x in (step, before))
    step, length = (torch.linalg.vector_norm(x.flatten(1), dim=1) for x in (step, before))
    return step / length


class Exit:
    """When a stack may leave out the rest of its passes, and a tally of how many it has run.

    Args:
        name: of the stack, for the log.
        threshold: the loop ends after a pass that moves the state by less than this share of its length.
        passes: P.
    """

    def __init__(self, name: str, threshold: float, passes: int):
        self.threshold = threshold
        self.tally = Tally(f"early exit, {name}: {{average}} of {passes} passes ran on average")

    def ends(self, before: Tensor, after: Tensor, padding: Tensor | None = None) -> bool:
        """Whether a pass has moved no entry of the batch by as much as the threshold; see :func:`moved`."""
        return bool((moved(before, after, padding) < self.threshold).all())


def way_out(name: str, threshold: float, passes: int) -> Exit | None:
    """An :class:`Exit`; None for the threshold 0, with which all passes run.

    Raises:
        FieldError: if the threshold is below 0.
    """
    if not threshold >= 0:
        raise FieldError("exit_threshold", threshold, "must be >= 0, where 0 runs all passes")
    return Exit(name, threshold, passes) if threshold else None


def until_still(
    loop: Loop, x: Tensor, leave: Exit, padding: Tensor | None = None, **arguments: Any
) -> tuple[Tensor, list[Tensor]]:
    """A loop up to the pass that moves no entry of the batch any more.

    Args:
        loop: the passes.
        x: (B, T, C).
        leave: when to leave.
        padding: (B, T) bool, tokens that do not count; None for none.
        **arguments: of :meth:`Loop.forward`.

    Returns:
        As :meth:`Loop.forward`; of states only those of passes that ran.
    """
    states: list[Tensor] = []
    first_inputs: dict[int, Tensor] = {}
    passes = loop.running
    for index in passes:
        before = x
        x, _ = loop(x, run=(index,), first_inputs=first_inputs, **arguments)
        states.append(x)
        if index != passes[-1] and leave.ends(before, x, padding):
            break
    leave.tally.add(len(states), 1)
    return x, states


def until_each_is_still(loop: Loop, x: Tensor, leave: Exit, **arguments: Any) -> Tensor:
    """A loop that each entry of the batch leaves behind the pass that hardly moves it; the rest goes on without it.

    Args:
        loop: the passes, none of which adds an earlier input again (`inject`).
        x: (B, T, C).
        leave: when to leave.
        **arguments: of :meth:`Loop.forward`, alike for all entries.

    Returns:
        The states with which they left, (B, T, C).
    """
    out, rows, passes = torch.empty_like(x), torch.arange(len(x), device=x.device), loop.running
    for ran, index in enumerate(passes, start=1):
        before = x
        x, _ = loop(x, run=(index,), **arguments)
        leaves = torch.ones_like(rows, dtype=torch.bool)
        if index != passes[-1]:
            leaves = moved(before, x) < leave.threshold
        out[rows[leaves]] = x[leaves]
        left = int(leaves.sum())
        if left:
            leave.tally.add(left * ran, left)
            rows, x = rows[~leaves], x[~leaves]
        if not len(rows):
            break
    return out


class LeavingSteps(Steps):
    """What a loop keeps of a text between two steps where each may end before the last pass.

    Args:
        loop: the passes.
        leave: when to leave.
        room: tokens to make room for at once; beyond it the room doubles.
    """

    def __init__(self, loop: Loop, leave: Exit, room: int = 32):
        super().__init__(loop, room)
        self.leave = leave
        self._left: Tensor | None = None  # states of the last tokens, those that have not run all passes among them

    def read(self, x: Tensor, arguments: Callable[[Tensor, int], dict[str, Any]]) -> Tensor:
        """Runs the next tokens through as many passes as they need.

        Args:
            x: (B, T, C), the input of the first pass.
            arguments: of tokens (B, L, C) that follow on so many others: what :meth:`Loop.forward` is to get.

        Returns:
            The state with which they leave, (B, T, C).
        """
        start, told, told_of, passes = self.length, {}, None, self.loop.running
        for index in passes:
            before, late = x, start - self.cache.lengths[index]
            x = torch.cat([self._left[:, -late:], x], dim=1) if late else x
            if late != told_of:
                told, told_of = arguments(x, start - late), late
            x = self.run(x, (index,), **told)[:, late:]
            if index != passes[-1] and self.leave.ends(before, x):
                break
        self.leave.tally.add(passes.index(index) + 1, 1)
        left = x if self._left is None else torch.cat([self._left, x], dim=1)
        waiting = self.length - self.cache.lengths[passes[-1]]
        self._left = left[:, left.size(1) - waiting :]
        return x

    def reorder(self, order: Tensor) -> None:
        """See :meth:`Steps.reorder`."""
        super().reorder(order)
        if self._left is not None:
            self._left = self._left.index_select(0, order)
