"""The controls of a looped model: how each row follows from its command line, and how wide one of equal storage is.

The parameters of a model are a quadratic in its width, and linear in the hidden units of its FFN. So those of a few
models, built without memory for their weights, tell the size of all.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from math import floor
from typing import Any

from numpy.polynomial import Polynomial
from torch import nn

from recurrence import count
from recurrence.comparison.rows import AS_LARGE

WIDTHS, UNITS = (0, 16, 32), (0, 1024)  # far apart, as some sizes are rounded


class Controls(ABC):
    """The command lines of a looped model and its controls.

    Attributes:
        words: the looped model's command line.
        target: parameters that it stores.
        blocks, passes: of each of its stacks, as :meth:`unshared` takes them.
        half: the same, of half as many blocks as passes, but at least one.
        build: builds the model of a command line on the meta device.
    """

    words: Sequence[str]
    target: int
    blocks: Any
    passes: Any
    half: Any
    build: Callable[[Sequence[str]], nn.Module]

    @abstractmethod
    def unshared(self, layers: Any, **sizes: Any) -> list[str]:
        """The command line of an unshared model that is otherwise like the looped one.

        Args:
            layers: blocks of each stack, as in `blocks`.
            **sizes: options in place of the looped model's.

        Raises:
            ValueError: if there is no such model.
        """

    @abstractmethod
    def more_heads(self, steps: int, hidden: int) -> dict[str, Any]:
        """Options of a wider model with heads of the same width.

        Args:
            steps: each adds the fewest heads that keep the stacks in proportion.
            hidden: hidden units of each FFN beyond the proportion.
        """

    @abstractmethod
    def narrower_heads(self, steps: int, hidden: int) -> dict[str, Any]:
        """Options of a narrower model with as many heads.

        Args:
            steps: a negative number; each takes one or two columns off each head.
            hidden: see :meth:`more_heads`.
        """

    def stored(self, words: Sequence[str]) -> int:
        """The parameters that the model of a command line stores."""
        return count.stored(self.build(words))

    def flags(self, names: Sequence[str]) -> dict[str, list[str]]:
        """The command lines of the rows of these names, see :data:`recurrence.comparison.rows.ROWS`.

        Raises:
            ValueError: if one cannot be derived.
        """
        flags = {"looped": list(self.words)}
        if "once" in names:
            flags["once"] = self.unshared(self.blocks)
        if "deep" in names:
            flags["deep"] = self.unshared(self.passes)
        for name, layers in zip(AS_LARGE, (self.blocks, self.half, self.passes)):
            if name in names:
                flags[name] = flags[f"{name}_time"] = self._as_large(name, layers)
        return flags

    def _as_large(self, row: str, layers: Any) -> list[str]:
        """The command line of an unshared model that stores as much as the looped one, or a little less."""
        fits = self.stored(self.unshared(layers)) <= self.target
        sizes = self.more_heads if fits else self.narrower_heads
        found = as_large(row, lambda *given: self.stored(self.unshared(layers, **sizes(*given))), self.target)
        return self.unshared(layers, **(sizes(*found) if any(found) else {}))


def as_large(row: str, stored: Callable[[int, int], int], target: int) -> tuple[int, int]:
    """Steps of the width, and hidden units, by which a model becomes the largest that stores at most `target`.

    Args:
        row: its name, for the error.
        stored: (steps of the width, hidden units of each FFN beyond the proportion) -> parameters; builds a model.
            Negative steps make it narrower.
        target: parameters.

    Raises:
        ValueError: if a model that has hardly any width would store more.
    """
    stored = cache(stored)
    steps = _largest(row, lambda number: stored(number, 0), WIDTHS, target)
    return steps, _largest(row, lambda units: stored(steps, units), UNITS, target)


def _largest(row: str, size: Callable[[int], int], points: Sequence[int], target: int) -> int:
    """The largest number of at most this size, by the polynomial through the sizes at these points."""
    curve = Polynomial.fit(points, list(map(size, points)), len(points) - 1)
    number = floor(max((curve - target).roots().real) + 1e-6)
    try:
        while size(number) > target:  # by what has been rounded
            number -= 1
    except (ValueError, ZeroDivisionError):  # of a model that is less than one column wide
        rule = "no model with as many heads is small enough; leave this row out"
        raise ValueError(f"--rows: {row}: {rule}") from None
    return number
