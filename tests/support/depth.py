"""What the tests of other depths share: a small loop, and the messages of loading at another depth."""

import pytest
import torch

from recurrence import order
from recurrence.block import Shape
from recurrence.loop import Loop
from recurrence.papers.relaxed import relaxed
from tests.support import stacks


def relaxed_loop(which: order.Order, seed: int = 0) -> Loop:
    """A loop of width 8 whose passes own LayerNorms, biases and terms of rank 2, all random."""
    torch.manual_seed(seed)
    return stacks.randomise(relaxed(Shape(8, 11, 2), which, 2), seed)


def depth_log(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages logged when a checkpoint is loaded at another depth than its own."""
    return [record.getMessage() for record in caplog.records if record.name == "recurrence.loading"]
