"""Orders at another depth than the trained one: stored blocks run more or less often.

The k-th run of a block uses the pass's own parameters (LayerNorms, level signals, projections) of its
k-th run in training, or of its last run if it ran less often. With one shared block, a shallower model runs the first
passes, and a deeper one repeats the last.
"""

from recurrence.order import STRATEGIES, Order, middle_loop


def source_passes(trained: Order, used: Order) -> tuple[int, ...]:
    """For each pass, the trained pass whose parameters it uses: (0, 1, 0, 1), (0, 1, 0, 1, 0, 1) -> 0 1 2 3 2 3.

    Both orders must run the same blocks.
    """
    left = {which: [index for index, block in enumerate(trained) if block == which] for which in trained}
    # The last run of a block is not used up.
    return tuple(left[which].pop(0) if len(left[which]) > 1 else left[which][0] for which in used)


def same_kind(order: Order, passes: int) -> Order | None:
    """The order with `passes` passes by the same strategy or middle loop; None if there is none, or not at that depth.

    If several strategies give `order`, the first of `STRATEGIES` counts. So an order that runs each block once grows as
    SEQUENCE does: (0, 1) at 4 passes is (0, 0, 1, 1), not (0, 1, 0, 1). None, too, if a strategy and a loop differ:
    (0, 1, 1) at 4 passes is (0, 1, 1, 0) by CYCLE (REV), and (0, 1, 1, 1) by a loop over block 1.
    """
    found = (strategy.at_depth(order, passes) for strategy in STRATEGIES.values())
    other, looped = next(filter(None, found), None), middle_loop(order, passes)
    if other is None or looped is None or other == looped:
        return other or looped
    return None


def passes_at(order: Order, passes: int) -> tuple[int, ...] | None:
    """Which passes of `order` a model with `passes` passes runs; None if there is no such model.

    (0, 0, 1, 1) at 2 passes: 0 2, the first run of each block.
    """
    if passes == len(order):
        return tuple(range(passes))
    used = same_kind(order, passes)
    return None if used is None else source_passes(order, used)
