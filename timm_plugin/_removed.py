"""Arguments of models in earlier versions, and what to use instead."""

from collections.abc import Mapping
from typing import Any

from recurrence.removed import LATE_LOOPS, RELAXED_SHARING

# They only steered a training, so that a saved model that has one is the same without it.
OF_TRAINING = {"loop_after_updates": LATE_LOOPS}
REMOVED = {**OF_TRAINING, "residual_rank": RELAXED_SHARING, "terms": RELAXED_SHARING}


def drop_removed(kwargs: dict[str, Any], saved: Mapping[str, Any]) -> None:
    """Takes removed arguments out of those of a model.

    Args:
        kwargs: the arguments, changed in place.
        saved: those among them that a saved model has brought.

    Raises:
        ValueError: if the user gives one, or if the saved weights are those of a removed model.
    """
    for name in kwargs.keys() & REMOVED:
        value = kwargs.pop(name)
        ignored = name in OF_TRAINING and value == saved.get(name)
        if value and not ignored:
            raise ValueError(f"{name}={value}: was removed: {REMOVED[name]}")
