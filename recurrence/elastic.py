"""Elastic depth: training in which every update draws how many passes run, so that one checkpoint serves every depth.

Source: random depths for shared blocks: Huginn (arXiv:2502.05171), section 3.3; uniform draws: LayerDrop
(arXiv:1909.11556), section 3, for unshared layers. The warm-up: LayerSkip (arXiv:2404.16710), the gradual curriculum of
its early-exit loss. Two depths in an update: Sliced Recursive Transformer (arXiv:2111.05297), section 5.7, with each
stored block run once in the shallow branch; with a drawn depth it is the sandwich rule of slimmable networks
(arXiv:1903.05134) for depth. Late loops, which run each block once for a number of updates: small language models
trained under a limit of time, such as those of https://github.com/openai/parameter-golf.

Differs from Huginn: draws are uniform within a range, gradients flow through all passes, and the state does not start
from noise.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from recurrence.depth import passes_at
from recurrence.errors import FieldError
from recurrence.loop import Loop, TrainingDepth
from recurrence.order import Order, block_count, first_runs

DEEPEST = 1000  # passes that a range may name; trying every depth takes time that grows with its square


@dataclass(frozen=True)
class Draw:
    """How many passes an update runs: a function of seed and update, so that ranks and resumed runs agree."""

    depths: tuple[int, ...]  # the numbers of passes to draw from, ascending
    seed: int = 0  # of the training
    stream: int = 0  # draws of different streams are independent

    def __call__(self, update: int, smallest: int = 1) -> int:
        """The depth of an update, of those that are at least `smallest` (the largest one if there are none)."""
        depths = [depth for depth in self.depths if depth >= smallest] or self.depths[-1:]
        rng = np.random.default_rng((self.seed % 2**64, update, self.stream))
        return depths[int(rng.random() * len(depths))]


def depths_of(order: Order, smallest: int, largest: int, step: int = 1, prefix_only: bool = False) -> tuple[int, ...]:
    """The numbers of passes in a range at which a checkpoint of this order can run, see :mod:`recurrence.depth`.

    Args:
        order: order at the trained depth.
        smallest, largest: the range, both included.
        step: every number of passes must be a multiple of this.
        prefix_only: only depths that run the first passes in order, as fixed depth tables require.

    Raises:
        FieldError: if the range is invalid, or the order cannot run at one of its ends.
    """
    given, passes = f"{smallest}-{largest}", len(order)
    if not 1 <= smallest < largest:
        raise FieldError("depth_range", given, "must be MIN-MAX with 1 <= MIN < MAX")
    if largest > DEEPEST:
        raise FieldError("depth_range", given, f"MAX must be at most {DEEPEST} passes")
    if passes > 1 and block_count(order) == passes:
        raise FieldError("depth_range", given, f"needs a block that runs again, but each of the {passes} runs once")
    if prefix_only and largest > passes:
        rule = f"MAX must be <= {passes}, because there is no depth signal for more passes"
        raise FieldError("depth_range", given, rule)
    runs = {depth: passes_at(order, depth) for depth in range(smallest, largest + 1) if not depth % step}
    found = [depth for depth, run in runs.items() if run and not (prefix_only and run != tuple(range(depth)))]
    for end in (smallest, largest):
        if end not in found:
            known = f"only at {', '.join(map(str, found))}" if found else "nor at others of the range"
            rule = f"the order {' '.join(map(str, order))} cannot run at depth {end}, {known}"
            raise FieldError("depth_range", given, rule)
    return tuple(found)


def make_elastic(
    loop: Loop,
    depth_range: tuple[int, int] | None = None,
    depth_warmup_updates: int = 0,
    mixed_depth: bool = False,
    loop_after_updates: int = 0,
    seed: int = 0,
    step: int = 1,
    prefix_only: bool = False,
    stream: int = 0,
) -> None:
    """Makes training draw the depth of a loop, train at two depths, or begin to loop late.

    Args:
        loop: at its inference depth.
        depth_range: smallest and largest number of passes; None always runs all.
        depth_warmup_updates, mixed_depth: see :class:`recurrence.loop.TrainingDepth`.
        loop_after_updates: see there; without effect on a loop whose blocks all run once.
        seed, stream: see :class:`Draw`.
        step, prefix_only: see :func:`depths_of`.

    Raises:
        FieldError: where a value breaks its rule, or does not go with another.
    """
    draw = None
    if depth_range is not None:
        draw = Draw(depths_of(loop.order, *depth_range, step, prefix_only), seed, stream)
    shared = len(loop.blocks) < loop.passes
    late = loop_after_updates if shared else 0
    loop.training_depth = TrainingDepth(loop.passes, draw, depth_warmup_updates, mixed_depth, late)
    if late:
        loop.looping = torch.zeros((), device=next(loop.parameters()).device)
    if mixed_depth and draw is None and (not shared or passes_at(loop.order, len(loop.blocks)) is None):
        order = " ".join(map(str, loop.order))
        raise FieldError("mixed_depth", True, f"the order {order} has no shorter form that runs each block once")


def check_effects(loops: Sequence[Loop], loop_after_updates: int = 0, pass_loss: float = 0.0) -> None:
    """Checks that late loops and the losses of earlier passes have an effect, after :func:`make_elastic`.

    Args:
        loops: of a model; the losses are those of the last one's passes.
        loop_after_updates, pass_loss: the options; 0 for none.

    Raises:
        FieldError: where one has none.
    """
    if loop_after_updates and not any(loop.training_depth.loop_after for loop in loops):
        raise FieldError("loop_after_updates", loop_after_updates, "needs a block that runs again, but each runs once")
    if pass_loss and not stops(loops[-1], max(loops[-1].training_depth.depths)):
        order = " ".join(map(str, loops[-1].order))
        rule = f"no earlier pass is the end of a model of fewer passes, in the order {order}"
        raise FieldError("pass_loss", pass_loss, rule)


def check_options(given: Mapping[str, Any]) -> None:
    """Checks the options of depth in training that do not depend on the stack.

    Args:
        given: those that the user has set, by name: `depth_range`, the arguments of :func:`make_elastic`, `pass_loss`
            (weight of the losses of earlier passes), and options of one plugin alone.

    Raises:
        FieldError: where a value breaks its rule, does not go with another or lacks one that it needs.
    """
    for name in ("depth_warmup_updates", "loop_after_updates"):
        if given.get(name, 1) < 1:
            raise FieldError(name, given[name], "must be >= 1")
    loss = given.get("pass_loss")
    if loss is not None and not 0 < loss < float("inf"):
        raise FieldError("pass_loss", loss, "must be > 0")
    if "mixed_depth" in given and loss is not None:
        raise FieldError("mixed_depth", True, "does not go with {pass_loss}", pass_loss=loss)
    if "depth_warmup_updates" in given and not {"depth_range", "pass_loss"} & given.keys():
        name = "depth_warmup_updates"
        raise FieldError(name, given[name], "needs {depth_range} or {pass_loss}")
    if "loop_after_updates" in given:
        for other, value in given.items():
            if other != "loop_after_updates":
                rule = f"does not go with {{{other}}}"
                raise FieldError("loop_after_updates", given["loop_after_updates"], rule, **{other: value})


def describe_late(loops: Mapping[str, Loop]) -> str:
    """What late loops run in this update, for the log: "encoder 3 of 5 passes (0 1 2)"."""
    parts = []
    for name, loop in loops.items():
        blocks = " ".join(str(loop.order[index]) for index in loop.running)
        parts.append(f"{name} {len(loop.running)} of {loop.passes} passes ({blocks})")
    return ", ".join(parts)


def idle(loop: Loop, indices: Sequence[int]) -> list[nn.Parameter]:
    """Parameters without a gradient if an update runs these passes and, at mixed depth, also all."""
    runs = [indices, range(loop.passes)] if loop.training_depth.mixed else [indices]
    used = {index for run in runs for index in run}
    modules = [loop.blocks[which] for which in set(loop.order) - {loop.order[index] for index in used}]
    if loop.own is not None:
        modules += [loop.own[index] for index in set(range(loop.passes)) - used]
    if isinstance(loop.join, nn.Module) and not any(_joins(loop, run) for run in runs):
        modules.append(loop.join)
    return [parameter for module in modules for parameter in module.parameters()]


def _joins(loop: Loop, indices: Sequence[int]) -> bool:
    """Whether one of these passes gets the input of its block's first pass."""
    runs = Counter(loop.order[index] for index in indices)
    return any(runs[which] > 1 for which in loop.inject)


def may_idle(loop: Loop) -> bool:
    """Whether some update leaves a parameter without a gradient; torch's DistributedDataParallel must know."""
    runs = [passes_at(loop.order, depth) for depth in loop.training_depth.depths]
    if loop.training_depth.loop_after:
        runs.append(first_runs(loop.order))
    return any(idle(loop, indices) for indices in runs)


def stops(loop: Loop, running: int, smallest: int = 1, step: int = 1) -> list[int]:
    """The depths below `running`, from `smallest` on, whose state is what a model of that depth would output.

    Only multiples of `step` and, if depths are drawn, only those that can be.
    """
    drawn, passes = loop.training_depth.draw, passes_at(loop.order, running)
    depths = [depth for depth in range(smallest, running) if not depth % step]
    candidates = [depth for depth in depths if drawn is None or depth in drawn.depths]
    return [depth for depth in candidates if passes_at(loop.order, depth) == passes[:depth]]


def branches(loops: Iterable[Loop]) -> list[dict[Loop, int]]:
    """The depths at which an update computes the loss, one dictionary per branch; the update's loss is their mean.

    Normally there is one branch, an empty dictionary: each loop runs what this update runs. At mixed depth there are
    two: all passes, and the drawn depth (one run of each stored block if none is drawn); just one if they are equal.
    """
    drawn = {loop: len(loop.running) for loop in loops}
    if not any(loop.training_depth.mixed for loop in drawn):
        return [{}]
    full = {loop: loop.passes for loop in drawn}
    shallow = {loop: depth if loop.training_depth.draw else len(loop.blocks) for loop, depth in drawn.items()}
    return [full] if shallow == full else [full, shallow]


def trained_depths(loop: Loop) -> tuple[int, int]:
    """The smallest and the largest depth at which training computes a loss for a loop's output."""
    training = loop.training_depth
    depths = set(training.depths)
    if training.mixed:
        depths.add(len(loop.blocks) if training.draw is None else loop.passes)
    return min(depths), max(depths)


@contextmanager
def at_depths(depths: dict[Loop, int]) -> Iterator[None]:
    """Within the context, runs each loop at another depth, like a model of that depth with the same checkpoint.

    With static level signals, and in incremental decoding, no more passes run than the loop has.

    Raises:
        ValueError: if the order of a loop does not run at that depth.
    """
    with ExitStack() as stack:
        for loop, depth in depths.items():
            passes = passes_at(loop.order, depth)
            if passes is None:
                raise ValueError(f"depth={depth}: the order {' '.join(map(str, loop.order))} does not run at it")
            stack.callback(setattr, loop, "chosen", loop.chosen)
            loop.chosen = passes
        yield
