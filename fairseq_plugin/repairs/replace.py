"""How repairs replace fairseq's functions, or run before or after them, and what callers may pass to these."""

import functools
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_plugin.repairs.foreign import copies_of

Repair = Callable[[], None]


def replace(owner: Any, name: str, wrapper: Callable) -> None:
    """Calls ``wrapper`` instead of ``owner.name``; a second call with the same wrapper has no effect.

    Args:
        owner: a module or class of fairseq.
        name: the attribute to replace; the original stays reachable as ``owner.name.__wrapped__``.
        wrapper: gets the original, then the arguments of the call. Its name identifies the repair.
    """
    original = getattr(owner, name)
    done = getattr(original, "fairseq_repairs", ())
    if wrapper.__name__ in done:
        return

    @functools.wraps(original, updated=())  # the original may be a class
    def replacement(*args, **kwargs):
        return wrapper(original, *args, **kwargs)

    replacement.fairseq_repairs = (*done, wrapper.__name__)
    setattr(owner, name, replacement)


def call_before(owner: Any, name: str, hook: Callable[..., None]) -> None:
    """Calls ``hook`` with the arguments of ``owner.name`` before each call; the hook may raise to reject them."""

    def hook_first(original: Callable, *args, **kwargs):
        hook(*args, **kwargs)
        return original(*args, **kwargs)

    hook_first.__name__ = hook.__name__
    replace(owner, name, hook_first)


def call_after(owner: Any, name: str, hook: Callable[..., None]) -> None:
    """Calls ``hook`` with the result of ``owner.name``, then its arguments, after each call."""

    def hook_last(original: Callable, *args, **kwargs):
        result = original(*args, **kwargs)
        hook(result, *args, **kwargs)
        return result

    hook_last.__name__ = hook.__name__
    replace(owner, name, hook_last)


def instead(owner: Any, *names: str) -> Callable[[Callable], Repair]:
    """Makes a function the repair that calls it instead of ``owner.name``, see :func:`replace`.

    Args:
        owner: a module or class of fairseq, several of them, or the name of a module that may also run as a command.
        *names: of its functions.
    """
    return functools.partial(_repair, replace, owner, names)


def before(owner: Any, *names: str) -> Callable[[Callable], Repair]:
    """Makes a function the repair that calls it before ``owner.name``, see :func:`call_before` and :func:`instead`."""
    return functools.partial(_repair, call_before, owner, names)


def after(owner: Any, *names: str) -> Callable[[Callable], Repair]:
    """Makes a function the repair that calls it after ``owner.name``, see :func:`call_after` and :func:`instead`."""
    return functools.partial(_repair, call_after, owner, names)


def _repair(install: Callable, owner: Any, names: Sequence[str], hook: Callable) -> Repair:
    def repair() -> None:
        owners = owner if isinstance(owner, tuple) else (owner,)
        for place in copies_of(owner) if isinstance(owner, str) else owners:
            for name in names:
                install(place, name, hook)

    repair.__module__, repair.__name__, repair.__doc__ = hook.__module__, hook.__name__, hook.__doc__
    return repair


def in_groups(cfg: Any) -> Any:
    """A command's configuration in groups: fairseq's functions also take the flat Namespace of its parsers."""
    return convert_namespace_to_omegaconf(cfg) if isinstance(cfg, Namespace) else cfg


def is_known(kind: type) -> bool:
    """Whether a class is fairseq's or ours; what a user's own task or criterion can do is not known."""
    return kind.__module__.partition(".")[0] in ("fairseq", "fairseq_plugin")
