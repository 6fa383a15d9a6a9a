"""The depths at which a checkpoint is about as good as at full depth, as measured: a buffer of each loop, `safe`.

:mod:`recurrence.analysis.depth_curve` measures them; loading the checkpoint at another depth warns.
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from recurrence.loop import Loop

logger = logging.getLogger(__name__)


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
