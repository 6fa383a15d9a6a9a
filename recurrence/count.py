"""What a model stores and what it runs."""

from collections.abc import Callable

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from recurrence.loop import Loop


def stored(module: nn.Module) -> int:
    """Trainable parameters that the module stores; a shared tensor counts once."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def unshared(module: nn.Module) -> int:
    """Trainable parameters that the same model would store if every pass had a block to itself."""
    copies = 0
    for loop in (child for child in module.modules() if isinstance(child, Loop)):
        run = sum(stored(loop.blocks[which]) for which in loop.order)
        copies += run - sum(stored(block) for block in loop.blocks)
    return stored(module) + copies


def flops(run: Callable[[], object]) -> int:
    """Floating-point operations of the matrix products that a function runs, two for each multiply-accumulate.

    On the meta device nothing is computed, and attention counts as its two full products.
    """
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def passes(module: nn.Module) -> int:
    """Effective depth: passes of all loops of the module together."""
    return sum(loop.passes for loop in module.modules() if isinstance(loop, Loop))
