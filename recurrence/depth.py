"""Another depth than the trained one: stored blocks run more or less often, on the parameters of one checkpoint.

The rule for what belongs to a pass (LayerNorms, level signals, low-rank terms, projections): the k-th run of a block
takes what the block's k-th run had in training, or what its last one had where it ran less often. With one shared block
fewer passes are the first ones, and further passes repeat the last.
"""

import logging
from collections import Counter

from recurrence.order import STRATEGIES, Order

logger = logging.getLogger(__name__)


def source_passes(trained: Order, used: Order) -> tuple[int, ...]:
    """For each pass, the trained pass whose parameters it takes: (0, 1, 0, 1), (0, 1, 0, 1, 0, 1) -> 0 1 2 3 2 3.

    Both orders run the same blocks.
    """
    runs: dict[int, list[int]] = {}
    for index, which in enumerate(trained):
        runs.setdefault(which, []).append(index)
    seen: Counter[int] = Counter()
    sources = []
    for which in used:
        sources.append(runs[which][min(seen[which], len(runs[which]) - 1)])
        seen[which] += 1
    return tuple(sources)


def same_kind(order: Order, passes: int) -> Order | None:
    """The order of so many passes by the same strategy; None where none gives this order, or not at that depth."""
    return next(filter(None, (strategy.deeper(order, passes) for strategy in STRATEGIES.values())), None)


def passes_at(order: Order, passes: int) -> tuple[int, ...] | None:
    """Which passes of a trained order a model of so many passes runs, in its order; None where there is no such model.

    (0, 0, 1, 1) at 2 passes: 0 2, the first run of either block.
    """
    if passes == len(order):
        return tuple(range(passes))
    used = same_kind(order, passes)
    return None if used is None else source_passes(order, used)


def warn_outside(name: str, passes: int, safe: tuple[int, int]) -> None:
    """Says once, at loading, that a depth is not among those that the checkpoint notes as safe."""
    logger.warning("%s: runs %d passes, outside of the %d to %d that the checkpoint notes as safe", name, passes, *safe)


def warn(name: str, used: Order, trained: Order) -> None:
    """Says once, at loading, that passes run which the model was not trained for."""
    logger.warning(
        "%s: runs %d passes (%s), trained with %d (%s)",
        *(name, len(used), " ".join(map(str, used)), len(trained), " ".join(map(str, trained))),
    )
