"""Loading a loop's checkpoint: which passes trained it, and loading at another depth, see :mod:`recurrence.depth`."""

import logging
import re
from collections.abc import Sequence

from recurrence.depth import same_kind, source_passes
from recurrence.order import Order, block_count

logger = logging.getLogger(__name__)


def fit(
    order: Order,
    whole: Order | None,
    shows_passes: bool,
    state_dict: dict,
    prefix: str,
    local_metadata: dict,
    errors: list[str],
) -> bool:
    """Makes the state dict of a loop fit another order, in place, or adds to the errors.

    Logs a warning if the depth is not the trained one. A truncated loop takes what it still runs from a checkpoint of
    the whole one.

    Args:
        order, whole: of the loop that loads, see :class:`recurrence.loop.Loop`.
        shows_passes: whether the names in a checkpoint show how many passes trained it.
        state_dict, prefix, local_metadata, errors: of torch's `_load_from_state_dict`.

    Returns:
        Whether passes load what other passes of the checkpoint own.
    """
    trained = _trained_order(order, whole, shows_passes, state_dict, prefix, local_metadata)
    name = prefix.rstrip(".")
    _drop_early_entries(state_dict, prefix)
    if trained in (None, order):
        return False
    if trained == whole:
        _take(state_dict, f"{prefix}blocks.", sorted(set(trained[: len(order)])))
        _take(state_dict, f"{prefix}own.", range(len(order)))
        return False
    if set(trained) != set(order):
        errors.append(
            f"{name}: the checkpoint stores {block_count(trained)} blocks, this depth runs {block_count(order)}: at "
            "another depth, the stored blocks may only run more or less often"
        )
        return False
    warn_of_depth(name, order, trained)
    return _take(state_dict, f"{prefix}own.", source_passes(trained, order))


def _trained_order(
    order: Order, whole: Order | None, shows_passes: bool, state_dict: dict, prefix: str, local_metadata: dict
) -> Order | None:
    """The order in the state dict or its metadata (which safetensors drop), or else the one that its passes imply.

    None if it is unknown: passes at the end that own no tensor leave no key.
    """
    noted = state_dict.pop(f"{prefix}noted", None)
    if noted is not None:
        return tuple(map(int, noted))  # an average of checkpoints has turned it into floats
    if "order" in local_metadata:
        return tuple(local_metadata["order"])
    found = (re.match(rf"{re.escape(prefix)}own\.(\d+)\.", key) for key in state_dict)
    passes = 1 + max((int(match[1]) for match in found if match), default=-1)
    if passes < len(order) and not shows_passes:
        return None
    if whole is not None and passes == len(whole):
        return whole
    return None if passes in (0, len(order)) else same_kind(order, passes)


def _drop_early_entries(state_dict: dict, prefix: str) -> None:
    """Removes what earlier versions stored: a mark of safety, and whether late loops had begun."""
    state_dict.pop(f"{prefix}safe", None)
    looping = state_dict.pop(f"{prefix}looping", None)
    if looping is not None and not looping > 0:
        logger.warning(
            "%s: runs all passes, although each block ran once when the checkpoint was saved: its training had late "
            "loops, an option since removed, and they had not begun",
            prefix.rstrip("."),
        )


def _take(state_dict: dict, start: str, sources: Sequence[int]) -> bool:
    """Gives entry i of a list of modules copies of the tensors of entry sources[i], in place; returns whether any are.

    The tensors of other entries are removed. `start` is the name of the list and a dot.
    """
    stored = {key: state_dict.pop(key) for key in list(state_dict) if key.startswith(start)}
    for index, source in enumerate(sources):
        source_prefix = f"{start}{source}."
        for key, tensor in stored.items():
            if key.startswith(source_prefix):
                state_dict[f"{start}{index}.{key[len(source_prefix) :]}"] = tensor.clone()
    return bool(stored)


def warn_of_depth(name: str, used: Order, trained: Order) -> None:
    """Logs that the depth is not the trained one."""
    logger.warning(
        "%s: runs at depth %d (%s), trained at %d (%s)",
        *(name, len(used), " ".join(map(str, used)), len(trained), " ".join(map(str, trained))),
    )
