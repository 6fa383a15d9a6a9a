"""How repairs replace fairseq's functions, or run before them."""

import functools
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fairseq import options


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


def look_before(owner: Any, name: str, look: Callable[..., None]) -> None:
    """Calls ``look`` with the arguments of ``owner.name`` before that runs; ``look`` rejects them by raising."""

    def make(original: Callable) -> Callable:
        def looked_at(*args, **kwargs):
            look(*args, **kwargs)
            return original(*args, **kwargs)

        return looked_at

    make.__name__ = look.__name__
    replace(owner, name, make)


def look_at_options(look: Callable[[Namespace], None]) -> None:
    """Calls ``look`` with a command's parsed options; ``look`` rejects them by raising."""

    def make(parse: Callable) -> Callable:
        def parse_args_and_arch(*args, **kwargs):
            parsed = parse(*args, **kwargs)
            look(parsed[0] if isinstance(parsed, tuple) else parsed)
            return parsed

        return parse_args_and_arch

    make.__name__ = look.__name__
    replace(options, "parse_args_and_arch", make)


def explain_errors(owner: Any, name: str, kinds: Any, explained: Callable[..., Exception | None]) -> None:
    """Replaces errors of ``owner.name`` by clearer ones.

    Args:
        owner, name: see :func:`replace`.
        kinds: the types of errors to replace.
        explained: gets the error and the arguments and returns the new error, or None to keep the original.
    """

    def make(original: Callable) -> Callable:
        def run(*args, **kwargs):
            try:
                return original(*args, **kwargs)
            except kinds as error:
                clearer = explained(error, *args, **kwargs)
                if clearer is None:
                    raise
                raise clearer from error

        return run

    make.__name__ = explained.__name__
    replace(owner, name, make)
