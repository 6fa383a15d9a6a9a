"""The rows of a comparison."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn, no_grad
from torch.nn.attention import SDPBackend, sdpa_kernel

from recurrence import count
from recurrence.loop import named_loops

# What a row is, and how a sentence that compares it with the looped model begins.
ROWS = {
    "looped": ("the looped model, as given", ""),
    "once": ("the same stored blocks, each run once", "Against the same blocks run once"),
    "storage": ("unshared, as deep as `once`, widened until it stores as much", "At equal storage"),
    "half": (
        "unshared, half as deep as `looped`, as wide as equal storage allows",
        "Against half the depth at equal storage",
    ),
    "narrow": ("a separate block for every pass, narrowed until it stores as much", "At equal storage and depth"),
    "deep": ("a separate block for every pass", "Against a separate block for every pass"),
    "storage_time": ("`storage`, trained for as long as `looped`", "At equal storage and training time"),
    "half_time": (
        "`half`, trained for as long as `looped`",
        "Against half the depth at equal storage and training time",
    ),
    "narrow_time": ("`narrow`, trained for as long as `looped`", "At equal storage, depth and training time"),
}
AS_LARGE = ("storage", "half", "narrow")
"""Rows that store as much as the looped model."""

TIMED = {f"{name}_time": name for name in AS_LARGE}
"""Rows that train for as long as the looped model, and what they train for longer."""

DEFAULT = tuple(name for name in ROWS if name not in ("storage_time", "narrow_time"))
"""Rows of a comparison that names none."""


@dataclass(frozen=True)
class Row:
    """A model of the comparison."""

    name: str  # one of ROWS
    flags: tuple[str, ...]  # the trainer's, without seed and folder; a timed run adds its own length
    blocks: int  # stored, of all stacks together
    passes: int  # runs of blocks in one forward pass
    parameters: int  # stored, trainable
    operations: int  # multiply-accumulates of a forward pass over one example
    megabytes: float  # size of its state dict in float32, fixed tables included
    rate: float = math.nan  # learning rate, if it was tuned
    embedded: int = 0  # parameters of the embeddings, of symbols and positions, and of an output layer of its own


def counted(name: str, flags: Sequence[str], model: nn.Module, forward: Callable[[], object]) -> Row:
    """The row of a model.

    Args:
        name, flags: see :class:`Row`.
        model: in eval mode; may be on the meta device.
        forward: runs it on one example.
    """
    loops = named_loops(model).values()
    blocks, passes = sum(len(loop.blocks) for loop in loops), sum(loop.passes for loop in loops)
    with no_grad(), sdpa_kernel(SDPBackend.MATH):  # PyTorch's counter knows no fused attention of a CPU
        operations = count.flops(forward) // 2
    embedded = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) or name.endswith("output_projection")
    ]
    return Row(
        name,
        tuple(flags),
        blocks,
        passes,
        count.stored(model),
        operations,
        count.megabytes(model),
        embedded=count.stored(nn.ModuleList(embedded)),
    )


@dataclass(frozen=True)
class Length:
    """The length of the training of one of the rows `TIMED`."""

    total: int  # in updates or epochs
    stretch: float  # the same, as a multiple of the untimed row's length


@dataclass(frozen=True)
class Score:
    """The score of a comparison."""

    name: str  # such as BLEU
    higher_is_better: bool  # whether larger scores are better
    example: str  # what a forward pass is counted over
    use: str  # what is timed, decoding or inference
