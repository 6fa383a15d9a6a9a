"""Running and loading a checkpoint at another depth than the trained one: stored blocks run more or less often.

The k-th run of a block uses the pass's own parameters (LayerNorms, level signals, low-rank terms, projections) of its
k-th run in training, or of its last run if it ran less often. With one shared block, a shallower model runs the first
passes, and a deeper one repeats the last.

A checkpoint may mark the depths at which it is about as good as at full depth, as measured by
:mod:`recurrence.analysis.depth_curve`: a buffer of each loop, `safe`. Loading it at another depth warns.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recurrence.order import STRATEGIES, Order, block_count, first_runs, middle_loop

if TYPE_CHECKING:
    from recurrence.loop import Loop

logger = logging.getLogger(__name__)


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


def adapt(loop: "Loop", state_dict: dict, prefix: str, local_metadata: dict, errors: list[str]) -> None:
    """Makes a loop's part of a state dict fit the loop's depth, in place; adds to `errors` what cannot be loaded.

    Logs a warning if the depth is outside the range that the checkpoint marks as safe or, without such a range, if it
    is not the trained depth. A checkpoint from before its loops began runs what was trained, which is logged, too.
    """
    trained, name = _trained_order(loop, state_dict, prefix, local_metadata), prefix.rstrip(".")
    has_safe_depths = adopt_safe(loop, state_dict, prefix)
    if trained is not None and trained != loop.order:
        if set(trained) != set(loop.order):
            errors.append(
                f"{name}: the checkpoint stores {block_count(trained)} blocks, this depth runs "
                f"{len(loop.blocks)}: at another depth, the stored blocks may only run more or less often"
            )
        else:
            if not has_safe_depths:
                warn_of_depth(name, loop.order, trained)
            _take_passes(state_dict, prefix, source_passes(trained, loop.order))
    if loop.noted is not None:
        state_dict[f"{prefix}noted"] = torch.tensor(loop.order)  # the buffer itself may still be uninitialised
    _adopt_looping(loop, state_dict, prefix)


def _adopt_looping(loop: "Loop", state_dict: dict, prefix: str) -> None:
    """Runs each block once if the checkpoint is from before its loops began; an average over their start loops."""
    looping = state_dict.pop(f"{prefix}looping", torch.ones(()))
    loop.chosen = None if looping > 0 else first_runs(loop.order)
    if loop.looping is not None:
        state_dict[f"{prefix}looping"] = looping
    elif loop.chosen is not None:
        logger.warning(
            "%s: runs each block once, %d passes of %d, as in training: the checkpoint is from before its loops began",
            *(prefix.rstrip("."), len(loop.chosen), loop.passes),
        )


def store_order(loop: "Loop", state_dict: dict, prefix: str, local_metadata: dict) -> None:
    """State dict hook: stores the order in the metadata, and a copy of the noted one.

    Averages of weights, such as timm's ModelEmaV2, write into the state dict of their copy and would round the order.
    """
    local_metadata["order"] = loop.order
    if loop.noted is not None:
        state_dict[f"{prefix}noted"] = loop.noted.clone()


def _trained_order(loop: "Loop", state_dict: dict, prefix: str, local_metadata: dict) -> Order | None:
    """The order in the state dict or its metadata (which safetensors drop), or else the one that its passes imply.

    None if it is the loop's, or unknown: last passes that own no tensor do not show.
    """
    noted = state_dict.pop(f"{prefix}noted", None)
    if noted is not None:
        return tuple(noted.tolist())
    if "order" in local_metadata:
        return tuple(local_metadata["order"])
    found = (re.match(rf"{re.escape(prefix)}own\.(\d+)\.", key) for key in state_dict)
    passes = 1 + max((int(match[1]) for match in found if match), default=-1)
    if passes < loop.passes and not (loop.own and loop.own[-1].state_dict()):
        return None
    return None if passes in (0, loop.passes) else same_kind(loop.order, passes)


def _take_passes(state_dict: dict, prefix: str, sources: Sequence[int]) -> None:
    """Gives pass i the tensors of pass sources[i], in place."""
    start = f"{prefix}own."
    trained = {key: state_dict.pop(key) for key in list(state_dict) if key.startswith(start)}
    for index, source in enumerate(sources):
        source_prefix = f"{start}{source}."
        for key, tensor in trained.items():
            if key.startswith(source_prefix):
                state_dict[f"{start}{index}.{key[len(source_prefix) :]}"] = tensor


def warn_of_depth(name: str, used: Order, trained: Order) -> None:
    """Logs that the depth is not the trained one."""
    logger.warning(
        "%s: runs %d passes (%s), trained with %d (%s)",
        *(name, len(used), " ".join(map(str, used)), len(trained), " ".join(map(str, trained))),
    )


def mark_safe(state_dict: dict[str, Tensor], ranges: dict[str, tuple[int, int]]) -> None:
    """Writes the smallest and largest safe depth of each loop, by its name, into a state dict."""
    for name, ends in ranges.items():
        state_dict[f"{name}.safe"] = torch.tensor(ends, dtype=torch.float)


def unmark_safe(state_dict: dict[str, Tensor]) -> None:
    """Removes the safe depths of all loops from a state dict, for weights that were not measured."""
    for key in [key for key in state_dict if key.endswith(".safe")]:
        del state_dict[key]


def forget_safe(loops: Iterable["Loop"]) -> None:
    """Removes the safe depths of loops, because training changes the weights that were measured."""
    for loop in loops:
        loop.safe = None


def adopt_safe(loop: "Loop", state_dict: dict[str, Tensor], prefix: str) -> bool:
    """Gives a loop a buffer for its safe depths in a state dict; warns if its depth is not one of them.

    Returns:
        Whether the state dict has them.
    """
    loop.safe, safe = None, state_dict.get(f"{prefix}safe")
    if safe is None:
        return False
    loop.safe = torch.empty(2, device=next(loop.parameters()).device)
    smallest, largest = map(round, safe.tolist())
    if not smallest <= loop.passes <= largest:
        name = prefix.rstrip(".")
        logger.warning("%s: runs %d passes, outside the safe range %d to %d", name, loop.passes, smallest, largest)
    return True
