"""The one way in which the repairs put something of their own in the place of one of fairseq's names."""

import functools
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fairseq import options


def replace(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Put ``make(original)`` in the place of ``owner.name``, once however often it is called.

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


def look_before(owner: Any, name: str, look: Callable[..., None]) -> None:
    """Let a function see the arguments of ``owner.name`` before that runs, and refuse them by raising."""

    def make(original: Callable) -> Callable:
        def looked_at(*args, **kwargs):
            look(*args, **kwargs)
            return original(*args, **kwargs)

        return looked_at

    make.__name__ = look.__name__
    replace(owner, name, make)


def look_at_options(look: Callable[[Namespace], None]) -> None:
    """Let a function see the options of a command as fairseq has parsed them, and refuse them by raising."""

    def make(parse: Callable) -> Callable:
        def parse_args_and_arch(*args, **kwargs):
            parsed = parse(*args, **kwargs)
            look(parsed[0] if isinstance(parsed, tuple) else parsed)
            return parsed

        return parse_args_and_arch

    make.__name__ = look.__name__
    replace(options, "parse_args_and_arch", make)


def explain_errors(owner: Any, name: str, kinds: Any, explained: Callable[..., Exception | None]) -> None:
    """Raise what a function makes of an error of ``owner.name``, in the place of the error.

    Args:
        owner, name: as of :func:`replace`.
        kinds: of errors.
        explained: gets the error, then the arguments; None leaves the error as it is.
    """

    def make(original: Callable) -> Callable:
        def run(*args, **kwargs):
            try:
                return original(*args, **kwargs)
            except kinds as error:
                told = explained(error, *args, **kwargs)
                if told is None:
                    raise
                raise told from error

        return run

    make.__name__ = explained.__name__
    replace(owner, name, make)
