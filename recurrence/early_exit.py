"""Early exit without a trained gate: the loop ends at the first pass that hardly moves the state.

A pass moves a text or an image by `|x_after - x_before| / |x_before|`, L2 norms over all tokens and features. Below the
threshold, further passes would hardly change the state.

In decoding, later tokens attend at every pass to all earlier ones. For passes that an earlier token has skipped, the
state with which it left is used; its keys and values are computed together with the first later token that runs the
pass.

Source: CALM (arXiv:2207.07061), sections 3.3 (saturation of the state) and 3.4 (propagation of the last state).
Differs from the paper: the measure is the norm of the step instead of the cosine; all texts of a batch leave
together; keys and values of a skipped pass are only computed if a later token runs it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.loop_state import LoopState
from recurrence.tally import Tally


def moved(before: Tensor, after: Tensor, padding: Tensor | None = None) -> Tensor:
    """How far a pass moves each entry of a batch, relative to the L2 norm of its state: (B,), at least float32.

    Args:
        before, after: the states before and after the pass, (B, T, C).
        padding: (B, T) bool, tokens to ignore; None for none.
    """
    step = after - before
    if padding is not None:
        step, before = (x.masked_fill(padding[:, :, None], 0) for x in (step, before))
    dtype = torch.promote_types(step.dtype, torch.float32)  # the norm of a state may be too large for float16
    step, norm = (torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=dtype) for x in (step, before))
    return step / norm.clamp_min(torch.finfo(norm.dtype).tiny)  # 0 for an entry that is all padding


class EarlyExit:
    """When a stack skips the rest of its passes, and a tally of the passes that ran.

    Args:
        name: name of the stack in the log.
        threshold: the loop ends after a pass that moves the state by less than this fraction of its L2 norm.
        passes: P.
    """

    def __init__(self, name: str, threshold: float, passes: int):
        self.threshold = threshold
        self.tally = Tally(f"early exit, {name}: {{average}} of {passes} passes ran on average")

    def ends(self, before: Tensor, after: Tensor, padding: Tensor | None = None) -> bool:
        """Whether the pass moved every entry of the batch by less than the threshold; see :func:`moved`."""
        return bool((moved(before, after, padding) < self.threshold).all())


def exit_rule(name: str, threshold: float, passes: int) -> EarlyExit | None:
    """An :class:`EarlyExit`; None if the threshold is 0, so that all passes run.

    Raises:
        FieldError: if the threshold is below 0.
    """
    if not threshold >= 0:
        raise FieldError("exit_threshold", threshold, "must be >= 0, where 0 runs all passes")
    return EarlyExit(name, threshold, passes) if threshold else None


def run_until_exit(
    loop: Loop, x: Tensor, early_exit: EarlyExit, padding: Tensor | None = None, **arguments: Any
) -> Tensor:
    """Runs a loop until a pass moves no entry of the batch any more.

    Args:
        loop: the passes.
        x: (B, T, C).
        early_exit: when to leave the loop.
        padding: (B, T) bool, tokens to ignore; None for none.
        **arguments: arguments of :meth:`Loop.forward`.

    Returns:
        The state after the last pass that ran, (B, T, C).
    """
    first_inputs: dict[int, Tensor] = {}
    passes = loop.running
    for index in passes:
        before = x
        x = loop(x, run=(index,), first_inputs=first_inputs, **arguments)
        if index != passes[-1] and early_exit.ends(before, x, padding):
            break
    early_exit.tally.add(passes.index(index) + 1, 1)
    return x


def run_until_each_exits(loop: Loop, x: Tensor, early_exit: EarlyExit, **arguments: Any) -> Tensor:
    """Runs a loop that each entry of the batch leaves separately.

    Args:
        loop: the passes; `inject` is not supported.
        x: (B, T, C).
        early_exit: when to leave the loop.
        **arguments: arguments of :meth:`Loop.forward`, without a batch dimension.

    Returns:
        The states with which the entries left, (B, T, C).

    Raises:
        RuntimeError: when traced, because the number of passes depends on the values.
    """
    if not isinstance(x, Tensor) or torch.compiler.is_exporting() or torch.jit.is_tracing():
        raise RuntimeError("exit_threshold: a traced graph cannot leave a loop early; must be 0 to trace a model")
    out, rows, passes = None, torch.arange(len(x), device=x.device), loop.running
    for ran, index in enumerate(passes, start=1):
        before = x
        x = loop(x, run=(index,), **arguments)
        leaves = torch.ones_like(rows, dtype=torch.bool)
        if index != passes[-1]:
            leaves = moved(before, x) < early_exit.threshold
        if out is None:
            out = torch.empty_like(x)  # after a pass, because autocast may change the type
        out[rows[leaves]] = x[leaves]
        left = int(leaves.sum())
        if left:
            early_exit.tally.add(left * ran, left)
            rows, x = rows[~leaves], x[~leaves]
        if not len(rows):
            break
    return out


class EarlyExitState(LoopState):
    """Decoding state of a loop with early exit.

    Args:
        loop: the passes.
        early_exit: when to leave the loop.
    """

    def __init__(self, loop: Loop, early_exit: EarlyExit):
        super().__init__(loop)
        self.early_exit = early_exit
        self._left: Tensor | None = None  # states of the last tokens, from the first that skipped a pass

    def read(
        self, x: Tensor, arguments: Callable[[Tensor, int], dict[str, Any]], padding: Tensor | None = None
    ) -> Tensor:
        """Runs the next tokens through as many passes as they need.

        Args:
            x: (B, T, C), the input of the first pass.
            arguments: called with states (B, L, C) and the number of tokens before them; gives the arguments of
                :meth:`Loop.forward`.
            padding: (B, L) bool over all tokens so far; None for no padding.

        Returns:
            The state with which they leave, (B, T, C).
        """
        start, passes = self.length, self.loop.running
        ignored = None if padding is None else padding[:, start : start + x.size(1)]
        kwargs: dict[str, Any] = {}
        kwargs_late = None
        for index in passes:
            before = x
            late = start - self.cache.lengths[index]  # earlier tokens that skipped this pass and now run it, too
            if late:
                x = torch.cat([self._left[:, -late:], x], dim=1)
            if late != kwargs_late:  # masks and positions depend on how many tokens run, not on the pass
                kwargs, kwargs_late = arguments(x, start - late), late
            x = self.run(x, (index,), **kwargs)[:, late:]
            if index != passes[-1] and self.early_exit.ends(before, x, ignored):
                break
        self.early_exit.tally.add(passes.index(index) + 1, 1)
        left = x if self._left is None else torch.cat([self._left, x], dim=1)
        waiting = self.length - self.cache.lengths[passes[-1]]
        self._left = left[:, left.size(1) - waiting :]
        return x

    def reorder(self, order: Tensor) -> None:
        """See :meth:`LoopState.reorder`."""
        super().reorder(order)
        if self._left is not None:
            self._left = self._left.index_select(0, order)


def new_loop_state(loop: Loop, early_exit: EarlyExit | None) -> LoopState:
    """The decoding state of a new text, with or without early exit."""
    return LoopState(loop) if early_exit is None else EarlyExitState(loop, early_exit)
