"""The rows of a comparison, and how large a control of equal storage must be."""

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn, no_grad
from torch.nn.attention import SDPBackend, sdpa_kernel

from recurrence import count
from recurrence.eight_bits import megabytes, quantise_
from recurrence.loop import named_loops

# What a row is, and how a sentence about its difference to the looped model begins.
ROWS = {
    "looped": ("the looped model, as given", ""),
    "once": ("the same stored blocks, each run once", "Against the same blocks run once"),
    "storage": ("unshared, as deep as `once`, widened until it stores as much", "At equal storage"),
    "narrow": ("a block of its own for every pass, narrowed until it stores as much", "At equal storage and depth"),
    "deep": ("a block of its own for every pass", "Against a block of its own for every pass"),
    "time": ("`storage`, trained for as long as `looped`", "At equal training time"),
}


@dataclass(frozen=True)
class Row:
    """A model of the comparison."""

    name: str  # one of ROWS
    flags: tuple[str, ...]  # the trainer's, without those of a single run (seed, folder, length)
    blocks: int  # stored, of all stacks together
    passes: int  # runs of blocks in one forward pass
    parameters: int  # stored, trainable
    operations: int  # multiply-accumulates of a forward pass over one example
    megabytes: float  # size of its weights in float32
    megabytes_8bit: float  # in eight bits, see recurrence.eight_bits
    rate: float = math.nan  # learning rate, if it was tuned


def counted(name: str, flags: Sequence[str], model: nn.Module, forward: Callable[[], object]) -> Row:
    """The row of a model.

    Args:
        name, flags: see :class:`Row`.
        model: in eval mode; it is quantised in the end.
        forward: runs it on one example.
    """
    loops = named_loops(model).values()
    blocks, passes = sum(len(loop.blocks) for loop in loops), sum(loop.passes for loop in loops)
    with no_grad(), sdpa_kernel(SDPBackend.MATH):  # PyTorch's counter knows no fused attention of a CPU
        operations = count.flops(forward) // 2
    stored, size = count.stored(model), megabytes(model)
    quantise_(model)
    return Row(name, tuple(flags), blocks, passes, stored, operations, size, megabytes(model))


@dataclass(frozen=True)
class Length:
    """How long the row `time` trains."""

    total: int  # in updates or epochs
    stretch: float  # how many times as long as `storage`


@dataclass(frozen=True)
class Score:
    """The score of a comparison."""

    name: str  # such as BLEU
    higher_is_better: bool  # whether larger scores are better
    example: str  # what a forward pass is counted over


def widest(stored: Callable[[int, int], int], target: int) -> tuple[int, int]:
    """By how much a model may be wider, if it stores at most `target` parameters; as it is, it does.

    Args:
        stored: (steps of the width, hidden units of the FFN beyond the proportion) -> parameters.
        target: see above.
    """
    steps = largest(lambda number: stored(number, 0) <= target)
    return steps, largest(lambda units: stored(steps, units) <= target)


def widest_below(stored: Callable[[int, int], int], target: int) -> tuple[int, int]:
    """As :func:`widest`, for a model that stores more: its steps are 0 or negative."""
    steps = next(-number for number in itertools.count() if stored(-number, 0) <= target)
    return steps, largest(lambda units: stored(steps, units) <= target)


def check_narrower(columns: int) -> None:
    """Raises ValueError if a head would have no column."""
    if columns < 1:
        raise ValueError("--rows: narrow: with as many heads, no model stores so little; leave this row out")


def largest(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, where 0 and all numbers up to it do."""
    size = 1
    while fits(size):
        size *= 2
    return bisect_left(range(size), True, key=lambda number: not fits(number)) - 1
