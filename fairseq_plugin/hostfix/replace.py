"""The one way in which the repairs put something of their own in the place of one of fairseq's names."""

import functools
from collections.abc import Callable
from typing import Any


def replace(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Put ``make(original)`` in the place of ``owner.name``, once however often it is called.

    Args:
        owner: a module or class of fairseq.
        name: the attribute to replace; the original stays reachable as ``owner.name.__wrapped__``.
        make: builds the replacement from the original. Its name identifies the repair.
    """
    original = getattr(owner, name)
    done = getattr(original, "host_repairs", ())
    if make.__name__ in done:
        return
    replacement = functools.wraps(original, updated=())(make(original))
    replacement.host_repairs = (*done, make.__name__)
    setattr(owner, name, replacement)
