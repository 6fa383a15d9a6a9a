"""A loop's checkpoints: which passes trained them, and loading at another depth, see :mod:`recurrence.depth`."""

import logging
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recurrence.depth import same_kind, source_passes
from recurrence.order import Order, block_count, first_runs

logger = logging.getLogger(__name__)


class LoadsAtOtherDepths(nn.Module):
    """The base of a loop: its order, and what its checkpoints hold besides the parameters.

    Attributes:
        order: one block index per pass.
        blocks, own: see :class:`recurrence.loop.Loop`.
        chosen: the passes to run instead of all; None for all.
        noted: buffer with the order, see :meth:`note_order`; None if other tensors show it.
        looping: buffer, 0 until late loops begin, then 1; None if they begin at once.
        moved: whether passes have loaded what other passes of a checkpoint own.
    """

    order: Order
    blocks: nn.ModuleList
    own: nn.ModuleList | None
    chosen: tuple[int, ...] | None
    noted: Tensor | None
    looping: Tensor | None
    moved = False

    def __init__(self):
        super().__init__()
        self.chosen = None
        for name in ("noted", "looping"):
            self.register_buffer(name, None)
        self.register_state_dict_post_hook(_store_order)

    def note_order(self) -> None:
        """Stores the order as a buffer, for checkpoints whose other tensors do not show it."""
        self.noted = torch.tensor(self.order, device=None if self.noted is None else self.noted.device)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, local_metadata: dict, *rest: Any) -> None:
        """Makes the state dict fit the loop's depth, in place.

        Logs a warning if the depth is not the trained one. A checkpoint from before its loops began runs what was
        trained, which is logged, too.
        """
        *_, errors = rest
        trained, name = self._trained_order(state_dict, prefix, local_metadata), prefix.rstrip(".")
        state_dict.pop(f"{prefix}safe", None)  # which early versions stored
        self.moved = False
        if trained is not None and trained != self.order:
            if set(trained) != set(self.order):
                errors.append(
                    f"{name}: the checkpoint stores {block_count(trained)} blocks, this depth runs "
                    f"{len(self.blocks)}: at another depth, the stored blocks may only run more or less often"
                )
            else:
                warn_of_depth(name, self.order, trained)
                self.moved = _take_passes(state_dict, prefix, source_passes(trained, self.order))
        if self.noted is not None:
            state_dict[f"{prefix}noted"] = torch.tensor(self.order)  # the buffer itself may still be uninitialised
        self._adopt_looping(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def _trained_order(self, state_dict: dict, prefix: str, local_metadata: dict) -> Order | None:
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
        if passes < len(self.order) and not (self.own and self.own[-1].state_dict()):
            return None
        return None if passes in (0, len(self.order)) else same_kind(self.order, passes)

    def _adopt_looping(self, state_dict: dict, prefix: str) -> None:
        """Runs each block once if the checkpoint is from before its loops began.

        An average of checkpoints from before and after runs all passes.
        """
        looping = state_dict.pop(f"{prefix}looping", torch.ones(()))
        self.chosen = None if looping > 0 else first_runs(self.order)
        if self.looping is not None:
            state_dict[f"{prefix}looping"] = looping
        elif self.chosen is not None:
            logger.warning(
                "%s: runs each block once, %d of %d passes, as in training: "
                "the checkpoint is from before its loops began",
                *(prefix.rstrip("."), len(self.chosen), len(self.order)),
            )


def _store_order(loop: LoadsAtOtherDepths, state_dict: dict, prefix: str, local_metadata: dict) -> None:
    """State dict hook: stores the order in the metadata, and a copy of the noted one.

    Averages of weights, such as timm's ModelEmaV2, write into the state dict of their copy and would round the order.
    """
    local_metadata["order"] = loop.order
    if loop.noted is not None:
        state_dict[f"{prefix}noted"] = loop.noted.clone()


def _take_passes(state_dict: dict, prefix: str, sources: Sequence[int]) -> bool:
    """Gives pass i copies of the tensors of pass sources[i], in place; returns whether passes own any."""
    start = f"{prefix}own."
    trained = {key: state_dict.pop(key) for key in list(state_dict) if key.startswith(start)}
    for index, source in enumerate(sources):
        source_prefix = f"{start}{source}."
        for key, tensor in trained.items():
            if key.startswith(source_prefix):
                state_dict[f"{start}{index}.{key[len(source_prefix) :]}"] = tensor.clone()
    return bool(trained)


def warn_of_depth(name: str, used: Order, trained: Order) -> None:
    """Logs that the depth is not the trained one."""
    logger.warning(
        "%s: runs at depth %d (%s), trained at %d (%s)",
        *(name, len(used), " ".join(map(str, used)), len(trained), " ".join(map(str, trained))),
    )
