"""Orders at another depth than the trained one: stored blocks run more or less often.

The k-th run of a block uses the pass's own parameters (LayerNorms, level signals, low-rank terms, projections) of its
k-th run in training, or of its last run if it ran less often. With one shared block, a shallower model runs the first
passes, and a deeper one repeats the last.
"""

from collections import Counter

from recurrence.order import STRATEGIES, Order, middle_loop


def source_passes(trained: Order, used: Order) -> tuple[int, ...]:
    """For each pass, the trained pass whose parameters it uses: (0, 1, 0, 1), (0, 1, 0, 1, 0, 1) -> 0 1 2 3 2 3.

    Both orders must run the same blocks.
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
    """The order with `passes` passes by the same strategy or middle loop; None if there is none, or not at that depth.

    If several strategies give `order`, the first of `STRATEGIES` counts. All do if each block runs once; such an order
    grows as SEQUENCE does: (0, 1) at 4 passes is (0, 0, 1, 1), not (0, 1, 0, 1).
    """
    for strategy in STRATEGIES.values():
        other = strategy.at_depth(order, passes)
        if other is not None:
            return other
    return middle_loop(order, passes)


def passes_at(order: Order, passes: int) -> tuple[int, ...] | None:
    """Which passes of `order` a model with `passes` passes runs; None if there is no such model.

    (0, 0, 1, 1) at 2 passes: 0 2, the first run of each block.
    """
    if passes == len(order):
        return tuple(range(passes))
    used = same_kind(order, passes)
    return None if used is None else source_passes(order, used)
