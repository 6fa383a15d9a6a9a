"""A loop's checkpoints: which passes trained them, and loading at another depth, see :mod:`recurrence.depth`."""

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from recurrence.depth import same_kind, source_passes
from recurrence.order import Order, block_count, first_runs

if TYPE_CHECKING:
    from recurrence.loop import Loop

logger = logging.getLogger(__name__)


def store_order(loop: "Loop", state_dict: dict, prefix: str, local_metadata: dict) -> None:
    """State dict hook: stores the order in the metadata, and a copy of the noted one.

    Averages of weights, such as timm's ModelEmaV2, write into the state dict of their copy and would round the order.
    """
    local_metadata["order"] = loop.order
    if loop.noted is not None:
        state_dict[f"{prefix}noted"] = loop.noted.clone()


def fit(loop: "Loop", state_dict: dict, prefix: str, local_metadata: dict, errors: list[str]) -> None:
    """Makes a state dict fit the loop's depth, in place, or adds to the errors.

    Logs a warning if the depth is not the trained one. A checkpoint from before its loops began runs what was
    trained, which is logged, too. A truncated loop takes what it still runs from a checkpoint of the whole one.
    """
    trained, name = _trained_order(loop, state_dict, prefix, local_metadata), prefix.rstrip(".")
    state_dict.pop(f"{prefix}safe", None)  # which early versions stored
    loop.moved = False
    if trained is not None and trained != loop.order:
        if trained == loop.whole:
            _take(state_dict, f"{prefix}blocks.", sorted(set(trained[: loop.passes])))
            _take(state_dict, f"{prefix}own.", range(loop.passes))
        elif set(trained) != set(loop.order):
            errors.append(
                f"{name}: the checkpoint stores {block_count(trained)} blocks, this depth runs "
                f"{len(loop.blocks)}: at another depth, the stored blocks may only run more or less often"
            )
        else:
            warn_of_depth(name, loop.order, trained)
            loop.moved = _take(state_dict, f"{prefix}own.", source_passes(trained, loop.order))
    if loop.noted is not None:  # the buffer itself may still be uninitialised
        state_dict[f"{prefix}noted"] = torch.tensor(loop.order, device="cpu")
    _adopt_looping(loop, state_dict, prefix)


def _trained_order(loop: "Loop", state_dict: dict, prefix: str, local_metadata: dict) -> Order | None:
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
    if passes < loop.passes and not (loop.own and loop.own[-1].state_dict()):
        return None
    return None if passes in (0, loop.passes) else same_kind(loop.order, passes)


def _adopt_looping(loop: "Loop", state_dict: dict, prefix: str) -> None:
    """Runs each block once if the checkpoint is from before its loops began.

    An average of checkpoints from before and after runs all passes.
    """
    looping = state_dict.pop(f"{prefix}looping", torch.ones((), device="cpu"))
    loop.chosen = None if looping > 0 else first_runs(loop.order)
    if loop.looping is not None:
        state_dict[f"{prefix}looping"] = looping
    elif loop.chosen is not None:
        logger.warning(
            "%s: runs each block once, %d of %d passes, as in training: the checkpoint is from before its loops began",
            *(prefix.rstrip("."), len(loop.chosen), loop.passes),
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
