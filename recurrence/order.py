"""Orders of execution: which stored block runs at which depth.

An order is a tuple with one entry per pass: the index of the stored block. Any order will do that names each block at
least once. `STRATEGIES` lists the ways to assign M stored blocks to N depths; options, and models at another depth than
the trained one (:mod:`recurrence.depth`), use it. Its rules assume 1 <= M <= N, which :meth:`Strategy.order` checks.

Source: Takase & Kiyono, "Lessons on Parameter Sharing across Layers in Transformers" (arXiv:2104.06022), Figure 2;
Intra-Layer Recurrence (arXiv:2505.01855), section 3.

Differs from the paper: Figure 2 tests `i < M` where only `i <= M` gives the assignments drawn in its Figure 1.
Differs from the published code: see :func:`published_order`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from recurrence.errors import FieldError

Order = tuple[int, ...]


def block_count(order: Order) -> int:
    """Number of stored blocks that an order runs: (0, 1, 2, 0, 1, 2) -> 3, () -> 0."""
    return 1 + max(order, default=-1)


def check_order(order: Order, blocks: int) -> None:
    """Raises ValueError if an order is empty, names a missing block or leaves one out."""
    named, stored = set(order), set(range(blocks))
    if not order:
        raise ValueError(f"order={order}: needs at least one pass")
    if missing := named - stored:
        raise ValueError(f"order={order}: names block {min(missing)}, but there are {blocks} blocks")
    if unused := stored - named:
        raise ValueError(f"order={order}: block {min(unused)} of {blocks} never runs")


def parse_order(text: str) -> Order:
    """ "0,1,1,2" -> (0, 1, 1, 2).

    Raises:
        FieldError: if an entry is not a whole number, or a block below the largest is left out.
    """
    if not re.fullmatch(r"\s*[0-9]{1,6}\s*(,\s*[0-9]{1,6}\s*)*", text):
        raise FieldError("order", text, "must be the numbers of stored blocks from 0, one per pass, such as 0,1,1,2")
    order = tuple(map(int, text.split(",")))
    unused = set(range(len(order))) - set(order)
    if max(order) >= min(unused, default=len(order)):
        raise FieldError("order", text, f"must name every block from 0 to {max(order)}; block {min(unused)} is missing")
    return order


def middle_loop(order: Order, passes: int) -> Order | None:
    """The order with `passes` passes, if it loops over some consecutive blocks and runs the others once; else None.

    (0, 1, 2, 1, 2, 3) at 8 passes: 0 1 2 1 2 1 2 3.
    """
    again = [index for index, block in enumerate(order) if order.count(block) > 1]
    if not again:
        return None
    start, end = again[0], again[-1] + 1
    body = order[start : start + len(set(order[start:end]))]
    loops, rest = divmod(passes - start - (len(order) - end), len(body))
    if rest or loops < 1 or body * order.count(body[0]) != order[start:end]:
        return None
    return order[:start] + body * loops + order[end:]


def sequence(unique_layers: int, layers: int) -> Order:
    """M = 3, N = 6: 0 0 1 1 2 2. If M does not divide N, the paper's rule stores more than M blocks, each of which runs
    N // M times, the last one possibly less often: M = 3, N = 7: 0 0 1 1 2 2 3.
    """
    group = layers // unique_layers
    return tuple(depth // group for depth in range(layers))


def cycle(unique_layers: int, layers: int) -> Order:
    """M = 3, N = 6: 0 1 2 0 1 2."""
    return tuple(depth % unique_layers for depth in range(layers))


def cycle_rev(unique_layers: int, layers: int) -> Order:
    """M = 3, N = 9: 0 1 2 0 1 2 2 1 0; the depths after the last multiple of M below N, Figure 2's M (ceil(N / M) - 1),
    run in reverse. M = N shares nothing and runs forward.
    """
    forward = unique_layers * max(1, (layers - 1) // unique_layers)
    steps = [depth % unique_layers for depth in range(layers)]
    return tuple(step if depth < forward else unique_layers - 1 - step for depth, step in enumerate(steps))


def sandwich(unique_layers: int, layers: int) -> Order:
    """M = 3, N = 6: 0 1 1 1 1 2. The first and the last depth have their own blocks; all others share one.

    Source: Subformer (arXiv:2101.00234), sandwich-style sharing.
    """
    return (0, *[1] * (layers - 2), unique_layers - 1)


@dataclass(frozen=True)
class Strategy:
    """A way to assign M stored blocks to N >= M depths."""

    rule: Callable[[int, int], Order]  # (M, N) -> the order
    fits: Callable[[int, int], bool] = lambda unique_layers, layers: True  # whether it supports them
    needs: str = ""  # the same rule in words, for the error message; may name {layers}

    def order(self, unique_layers: int, layers: int) -> Order:
        """The order of N passes.

        Raises:
            FieldError: if not 1 <= M <= N, or the strategy does not support these numbers.
        """
        if layers < 1:
            raise FieldError("layers", layers, "must be >= 1")
        if not 1 <= unique_layers <= layers:
            raise FieldError("unique_layers", unique_layers, "must be >= 1 and <= {layers}", layers=layers)
        if not self.fits(unique_layers, layers):
            raise FieldError("unique_layers", unique_layers, self.needs, layers=layers)
        return self.rule(unique_layers, layers)

    def at_depth(self, order: Order, passes: int) -> Order | None:
        """The order with `passes` passes of the same blocks, if this strategy gives `order`; else None."""
        blocks = block_count(order)
        if not blocks <= passes or not self.fits(blocks, passes) or self.rule(blocks, len(order)) != order:
            return None
        found = self.rule(blocks, passes)
        return found if block_count(found) == blocks else None


STRATEGIES = {
    "sequence": Strategy(sequence),
    "cycle": Strategy(cycle),
    "cycle_rev": Strategy(cycle_rev),
    "sandwich": Strategy(sandwich, lambda m, n: m == 3, "must be 3 with sandwich: first, middle and last"),
}


def published_order(strategy: str, share_layer_num: int, layers: int) -> Order:
    """The order of the published code, whose option is the number of depths per unique layer, N / M, instead of M.

    It equals the paper's order if `share_layer_num` divides N. Otherwise M is N / share_layer_num rounded up, SEQUENCE
    has a shorter last group (3 per layer, N = 7: 0 0 0 1 1 1 2), and CYCLE (REV) ends with a complete reversed cycle
    (N = 7: 0 1 2 0 2 1 0) if N >= 2 M.

    Raises:
        FieldError: if not 1 <= share_layer_num <= layers, or the published code has no such strategy.
    """
    if not 1 <= share_layer_num <= layers:
        raise FieldError("share_layer_num", share_layer_num, "must be >= 1 and <= {layers}", layers=layers)
    unique_layers = -(-layers // share_layer_num)
    if strategy == "sequence":
        return tuple(depth // share_layer_num for depth in range(layers))
    if strategy == "cycle_rev" and layers >= 2 * unique_layers:
        return cycle(unique_layers, layers - unique_layers) + tuple(reversed(range(unique_layers)))
    if strategy in ("cycle", "cycle_rev"):
        return STRATEGIES[strategy].order(unique_layers, layers)
    raise FieldError("share_layer_num", share_layer_num, f"the published code has no {strategy}")


def reuse_map(counts: Iterable[int]) -> Order:
    """Block i runs counts[i] >= 1 times in succession: (4, 2, 1, 1) gives 0 0 0 0 1 1 2 3.

    Raises:
        FieldError: if there is no entry, or one is below 1.
    """
    counts = tuple(counts)
    if not counts or min(counts) < 1:
        raise FieldError("reuse_map", counts, "needs at least one entry, and each must be >= 1")
    return tuple(block for block, count in enumerate(counts) for _ in range(count))


def block_loop(layers: int, loops: int) -> Order:
    """All blocks in turn, the whole stack `loops` times: 2 layers, 3 loops: 0 1 0 1 0 1.

    Raises:
        FieldError: if layers or loops is below 1.
    """
    if loops < 1:
        raise FieldError("block_loops", loops, "must be >= 1")
    return STRATEGIES["cycle"].order(layers, layers * loops)
