"""Takes options out of a command line, given the parser that defines them."""

import argparse
from collections.abc import Iterable, Sequence


def split(words: Sequence[str], actions: Iterable[argparse.Action]) -> tuple[list[str], list[str]]:
    """Splits a command line into the options of these actions, with their values, and all other words.

    Args:
        words: a valid command line, without abbreviated options.
        actions: of an :class:`argparse.ArgumentParser`.
    """
    known = {name: action for action in actions for name in action.option_strings}
    theirs: list[str] = []
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if name not in known:
            others.append(word)
            continue
        theirs.append(word)
        count = 0 if equals else _values(known[name].nargs, rest)
        theirs += rest[:count]
        del rest[:count]
    return theirs, others


def _values(nargs: int | str | None, rest: Sequence[str]) -> int:
    """How many of the words are the values of an option."""
    if nargs is None or isinstance(nargs, int):
        return 1 if nargs is None else nargs
    free = next((index for index, word in enumerate(rest) if word.startswith("-")), len(rest))
    return min(free, 1) if nargs == "?" else free
