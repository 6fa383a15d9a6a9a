"""Runs functions of ours where fairseq calls its own."""

import functools
from collections.abc import Callable
from typing import Any


def replace(owner: Any, name: str, wrapper: Callable) -> None:
    """Calls `wrapper` instead of a function of a module or class of fairseq, with the original before its arguments."""
    original = getattr(owner, name)

    @functools.wraps(original, updated=())  # the original may be a class
    def replacement(*args, **kwargs):
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, replacement)


def call_before(owner: Any, name: str, hook: Callable[..., None]) -> None:
    """Calls `hook` with the arguments of `owner.name` before each call; the hook may raise to reject them."""

    def hook_first(original: Callable, *args, **kwargs):
        hook(*args, **kwargs)
        return original(*args, **kwargs)

    replace(owner, name, hook_first)


def call_after(owner: Any, name: str, hook: Callable[..., None]) -> None:
    """Calls `hook` with the result of `owner.name`, then its arguments, after each call."""

    def hook_last(original: Callable, *args, **kwargs):
        result = original(*args, **kwargs)
        hook(result, *args, **kwargs)
        return result

    replace(owner, name, hook_last)
