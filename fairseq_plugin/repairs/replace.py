"""How repairs replace fairseq's functions, or run before or after them, and what callers may pass to these."""

import functools
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fairseq.dataclass.utils import convert_namespace_to_omegaconf


def replace(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replaces ``owner.name`` by ``make(original)``; a second call with the same repair has no effect.

    Args:
        owner: a module or class of fairseq.
        name: the attribute to replace; the original stays reachable as ``owner.name.__wrapped__``.
        make: builds the replacement from the original. Its name identifies the repair.
    """
    original = getattr(owner, name)
    done = getattr(original, "fairseq_repairs", ())
    if make.__name__ in done:
        return
    replacement = functools.wraps(original, updated=())(make(original))
    replacement.fairseq_repairs = (*done, make.__name__)
    setattr(owner, name, replacement)


def call_before(owner: Any, name: str, hook: Callable[..., None]) -> None:
    """Calls ``hook`` with the arguments of ``owner.name`` before each call; the hook may raise to reject them."""

    def make(original: Callable) -> Callable:
        def hook_first(*args, **kwargs):
            hook(*args, **kwargs)
            return original(*args, **kwargs)

        return hook_first

    make.__name__ = hook.__name__
    replace(owner, name, make)


def call_after(owner: Any, name: str, hook: Callable[..., None]) -> None:
    """Calls ``hook`` with the result of ``owner.name``, then its arguments, after each call."""

    def make(original: Callable) -> Callable:
        def hook_last(*args, **kwargs):
            result = original(*args, **kwargs)
            hook(result, *args, **kwargs)
            return result

        return hook_last

    make.__name__ = hook.__name__
    replace(owner, name, make)


def in_groups(cfg: Any) -> Any:
    """A command's configuration in groups: fairseq's functions also take the flat Namespace of its parsers."""
    return convert_namespace_to_omegaconf(cfg) if isinstance(cfg, Namespace) else cfg


def is_known(kind: type) -> bool:
    """Whether a class is fairseq's or ours; what a user's own task or criterion can do is not known."""
    return kind.__module__.partition(".")[0] in ("fairseq", "fairseq_plugin")
