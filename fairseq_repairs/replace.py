"""How a repair gets into fairseq: it replaces one of its functions, or runs before or after it."""

import functools
import importlib
import inspect
import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fairseq.dataclass.utils import convert_namespace_to_omegaconf


def at_once(repair: Callable[[], None]) -> Callable[[], None]:
    """Makes a repair on import: one that wraps no function, or that first checks whether fairseq has the defect."""
    repair()
    return repair


def instead(owner: Any, *names: str, where: bool = True) -> Callable[[Callable], Callable]:
    """Calls a function in place of `owner.name`, with the original as its first argument.

    Args:
        owner: a module or class of fairseq, several of them, or the name of a module that may also run as a command.
        *names: of its functions; the original stays reachable as `owner.name.__wrapped__`.
        where: whether this fairseq has the defect.
    """

    def install(repair: Callable) -> Callable:
        for place in _places(owner) if where else ():
            for name in names:
                replace(place, name, repair)
        return repair

    return install


def before(owner: Any, *names: str) -> Callable[[Callable], Callable]:
    """Calls a function with the arguments of `owner.name` before each call; it may raise to reject them."""

    def install(repair: Callable) -> Callable:
        @functools.wraps(repair)
        def first(original: Callable, *args, **kwargs):
            repair(*args, **kwargs)
            return original(*args, **kwargs)

        instead(owner, *names)(first)
        return repair

    return install


def after(owner: Any, *names: str, where: bool = True) -> Callable[[Callable], Callable]:
    """Calls a function with the result of `owner.name`, then its arguments, after each call."""

    def install(repair: Callable) -> Callable:
        @functools.wraps(repair)
        def last(original: Callable, *args, **kwargs):
            result = original(*args, **kwargs)
            repair(result, *args, **kwargs)
            return result

        instead(owner, *names, where=where)(last)
        return repair

    return install


def replace(owner: Any, name: str, repair: Callable) -> None:
    """Calls `repair(original, ...)` in place of `owner.name`; has no effect where that is done already."""
    found = inspect.getattr_static(owner, name)
    is_method = isinstance(found, classmethod | staticmethod)  # of a class, whose function is inside
    original = found.__func__ if is_method else found
    done = getattr(original, "fairseq_repairs", ())
    if repair.__qualname__ in done:  # this package was imported before, perhaps under another name
        return

    @functools.wraps(original, updated=())  # the original may be a class
    def repaired(*args, **kwargs):
        return repair(original, *args, **kwargs)

    repaired.fairseq_repairs = (*done, repair.__qualname__)
    setattr(owner, name, type(found)(repaired) if is_method else repaired)


def _places(owner: Any) -> Any:
    if isinstance(owner, str):
        return copies_of(owner)
    return owner if isinstance(owner, tuple) else (owner,)


def copies_of(name: str) -> Iterator[ModuleType]:
    """A module of fairseq and, if `python -m` runs it, its second copy, the main module.

    fairseq's command modules configure logging when they are imported; that is undone.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        module = importlib.import_module(name)
    except ImportError:  # this version of fairseq does not have it
        return
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    yield module
    main = sys.modules["__main__"]
    package, _, stem = name.rpartition(".")
    if Path(getattr(main, "__file__", None) or "").parts[-2:] == (package, f"{stem}.py"):
        yield main


def in_groups(cfg: Any) -> Any:
    """A command's configuration in groups: fairseq's functions also take the flat Namespace of its parsers."""
    return convert_namespace_to_omegaconf(cfg) if isinstance(cfg, Namespace) else cfg
