"""Elastic depth: training in which every update draws how many passes run, so that one checkpoint serves every depth.

What an update runs follows from the order of a loop, the options and the number of the update, and from nothing else:
ranks agree, and a resumed training repeats it.

Source: random depths for shared blocks: Huginn (arXiv:2502.05171), section 3.3; uniform draws: LayerDrop
(arXiv:1909.11556), section 3, for unshared layers. The warm-up: LayerSkip (arXiv:2404.16710), the gradual curriculum of
its early-exit loss. Two depths in an update: Sliced Recursive Transformer (arXiv:2111.05297), section 5.7, with each
stored block run once in the shallow branch; with a drawn depth it is the sandwich rule of slimmable networks
(arXiv:1903.05134) for depth. A loss for every pass through one output layer: Deeply-Supervised Nets (arXiv:1409.5185),
for looped models as in Ouro (arXiv:2510.25741), here without its gate and pass weights.

Differs from Huginn: draws are uniform within a range, gradients flow through all passes, and the state does not start
from noise.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from recurrence.depth import passes_at
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.order import Order, block_count

DEEPEST = 1000  # passes that a range may name; trying every depth takes time that grows with its square


@dataclass(frozen=True)
class TrainingDepth:
    """How many passes of a loop each update trains; :func:`training_depth` makes it from options.

    Args:
        order: of the loop, at its full depth.
        drawn: the numbers of passes that an update may draw, ascending; () always runs all.
        warmup: updates during which the smallest depth falls linearly from all passes.
        mixed: whether each update trains at two depths, see :func:`branches`.
        step: a model of fewer passes has a multiple of this.
        seed: of the draws.
    """

    order: Order
    drawn: tuple[int, ...] = ()
    warmup: int = 0
    mixed: bool = False
    step: int = 1
    seed: int = 0

    @property
    def trains_full(self) -> bool:
        """Whether some update runs all passes, as validation and inference do by default."""
        return self.mixed or not self.drawn or len(self.order) in self.drawn

    def depth(self, update: int | None) -> int:
        """How many passes an update runs: drawn from those that are at least its smallest depth, or else the largest.

        Raises:
            RuntimeError: if that needs the number of the update, and it is None.
        """
        if not self.drawn:
            return len(self.order)
        smallest = self.smallest(update)
        depths = [depth for depth in self.drawn if depth >= smallest] or self.drawn[-1:]
        random = np.random.default_rng((self.seed % 2**64, _known(update)))
        return depths[int(random.random() * len(depths))]

    def smallest(self, update: int | None) -> int:
        """The smallest depth that an update may draw or supervise: all passes at first, fewer during the warm-up.

        Raises:
            RuntimeError: see :meth:`depth`.
        """
        full, smallest = len(self.order), self.drawn[0] if self.drawn else 1
        if not self.warmup:
            return smallest
        return full - int((full - smallest) * min(1.0, _known(update) / self.warmup))

    def stops(self, update: int | None) -> list[int]:
        """The depths below that of an update whose state is what a model of that depth would output, ascending.

        Raises:
            RuntimeError: see :meth:`depth`.
        """
        return self.stops_of(self.depth(update), self.smallest(update))

    def stops_of(self, running: int, smallest: int = 1) -> list[int]:
        """As :meth:`stops`, for an update of `running` passes: of the drawn depths or, if none are drawn, of all.

        Args:
            running: passes of the update.
            smallest: depth that is a stop.
        """
        passes, candidates = passes_at(self.order, running), self.drawn or range(self.step, running, self.step)
        depths = [depth for depth in candidates if smallest <= depth < running]
        return [depth for depth in depths if passes_at(self.order, depth) == passes[:depth]]

    @property
    def ends(self) -> tuple[int, int]:
        """The smallest and the largest depth at which training computes a loss for the loop's output."""
        depths = {*self.drawn}
        if self.mixed or not self.drawn:
            depths.add(len(self.order))
        if self.mixed and not self.drawn:
            depths.add(block_count(self.order))
        return min(depths), max(depths)


def _known(update: int | None) -> int:
    """The number of an update. Raises RuntimeError if it is None, because the trainer has not given it."""
    if update is None:
        raise RuntimeError("the depth changes in training: call model.set_num_updates(update) before each update")
    return update


def branches(loops: Sequence[TrainingDepth], update: int | None) -> list[list[int]]:
    """The depths at which an update computes the loss: one list per branch, with the depth of each loop.

    The update's loss is the mean over the branches. There is one, the drawn depth, or at mixed depth two: all passes,
    and the drawn depth (one run of each stored block if none is drawn); just one if they are equal.

    Raises:
        RuntimeError: see :meth:`TrainingDepth.depth`.
    """
    drawn = [loop.depth(update) for loop in loops]
    if not any(loop.mixed for loop in loops):
        return [drawn]
    full = [len(loop.order) for loop in loops]
    shallow = [depth if loop.drawn else block_count(loop.order) for loop, depth in zip(loops, drawn)]
    return [full] if shallow == full else [full, shallow]


def check_options(given: Mapping[str, Any]) -> None:
    """Checks the options of depth in training that do not depend on the order.

    Args:
        given: those that the user has set, by name, see :func:`training_depth`, and options of one plugin alone.

    Raises:
        FieldError: where a value breaks its rule, conflicts with another or lacks one that it needs.
    """
    warmup, loss = given.get("depth_warmup_updates"), given.get("pass_loss")
    if warmup is not None and warmup < 1:
        raise FieldError("depth_warmup_updates", warmup, "must be >= 1")
    if loss is not None and not 0 < loss < float("inf"):
        raise FieldError("pass_loss", loss, "must be > 0 and < inf")
    if "mixed_depth" in given and loss is not None:
        raise FieldError("mixed_depth", True, "conflicts with {pass_loss}", pass_loss=loss)
    if warmup is not None and not {"depth_range", "pass_loss"} & given.keys():
        raise FieldError("depth_warmup_updates", warmup, "needs {depth_range} or {pass_loss}")


def training_depth(
    order: Order,
    depth_range: Sequence[int] | None = None,
    depth_warmup_updates: int = 0,
    mixed_depth: bool = False,
    pass_loss: float = 0.0,
    seed: int = 0,
    step: int = 1,
    unit: int = 1,
    prefix_only: bool = False,
) -> TrainingDepth:
    """The depth of a loop in training by the options, which :func:`check_options` has checked.

    Args:
        order: of the loop, at its inference depth.
        depth_range: the smallest and the largest number of passes that an update may draw; None always runs all.
        depth_warmup_updates, mixed_depth: see :class:`TrainingDepth`; 0 for no warm-up.
        pass_loss: weight of the losses of earlier passes; 0 for none.
        seed, step: see :class:`TrainingDepth`.
        unit: number of passes that the range counts as one.
        prefix_only: only draw depths that run the first passes in order, as fixed depth tables require.

    Raises:
        FieldError: where a value conflicts with the order.
    """
    drawn: tuple[int, ...] = ()
    if depth_range is not None:
        smallest, largest = depth_range
        drawn = depths_of(order, smallest, largest, step, unit, prefix_only)
    depth = TrainingDepth(order, drawn, depth_warmup_updates, mixed_depth, max(step, unit), seed)
    blocks, text = block_count(order), " ".join(map(str, order))
    if mixed_depth and not drawn and (blocks == len(order) or passes_at(order, blocks) is None):
        raise FieldError("mixed_depth", True, f"the order {text} has no shorter form that runs each block once")
    if pass_loss and not depth.stops_of(max(drawn, default=len(order))):
        rule = f"needs an earlier pass at which a shallower model would end; the order {text} has none"
        raise FieldError("pass_loss", pass_loss, rule)
    return depth


def depths_of(
    order: Order, smallest: int, largest: int, step: int = 1, unit: int = 1, prefix_only: bool = False
) -> tuple[int, ...]:
    """The numbers of passes in a range at which a checkpoint of this order can run, see :mod:`recurrence.depth`.

    `smallest` and `largest`, in units, are included; for the other arguments see :func:`training_depth`.

    Raises:
        FieldError: if the range is invalid, or the order cannot run at one of its ends.
    """
    given, passes = f"{smallest}-{largest}", len(order)
    if not 1 <= smallest < largest:
        raise FieldError("depth_range", given, "must be MIN-MAX with 1 <= MIN < MAX")
    ends = (unit * smallest, unit * largest)
    if ends[1] > DEEPEST:
        raise FieldError("depth_range", given, f"MAX must be at most {DEEPEST} passes")
    if passes > 1 and block_count(order) == passes:
        raise FieldError("depth_range", given, f"needs a block that runs more than once; all {passes} run once")
    if prefix_only and ends[1] > passes:
        rule = f"MAX must be <= {passes}, because there is no depth signal for more passes"
        raise FieldError("depth_range", given, rule)
    every = max(step, unit)
    runs = {depth: passes_at(order, depth) for depth in range(ends[0], ends[1] + 1) if not depth % every}
    found = [depth for depth, run in runs.items() if run and not (prefix_only and run != tuple(range(depth)))]
    for end in ends:
        if end not in found:
            others = f"only at {', '.join(map(str, found))}" if found else "nor at others of the range"
            rule = f"the order {' '.join(map(str, order))} cannot run at depth {end}, {others}"
            raise FieldError("depth_range", given, rule)
    return tuple(found)


def idle(loop: Loop, runs: Iterable[Sequence[int]]) -> list[nn.Parameter]:
    """The parameters of a loop without a gradient in an update whose calls run these passes, one sequence per call."""
    runs = list(runs)
    used = {index for run in runs for index in run}
    modules = [loop.blocks[which] for which in set(loop.order) - {loop.order[index] for index in used}]
    if loop.own is not None:
        modules += [loop.own[index] for index in set(range(len(loop.order))) - used]
    if isinstance(loop.join, nn.Module) and not any(_joins(loop, run) for run in runs):
        modules.append(loop.join)
    return [parameter for module in modules for parameter in module.parameters()]


def _joins(loop: Loop, run: Sequence[int]) -> bool:
    """Whether one of these passes gets the input of its block's first pass."""
    runs = Counter(loop.order[index] for index in run)
    return any(runs[which] > 1 for which in loop.inject)


def may_idle(loop: Loop, depth: TrainingDepth) -> bool:
    """Whether some update leaves a parameter without a gradient; torch's DistributedDataParallel must know."""
    full = range(len(loop.order))
    always = [full] if depth.mixed else []
    return any(idle(loop, [*always, passes_at(loop.order, drawn)]) for drawn in depth.drawn or (len(full),))
