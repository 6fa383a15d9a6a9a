"""What a model stores and what it runs.

torch counts the operations of matrix products, convolutions and attention; fvcore, which is optional (`pip install
fvcore`), those of matrix products, convolutions and norms, but not of fused attention, activations and sums.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from recurrence.loop import named_loops

ATTENTION = "aten::scaled_dot_product_attention"


def stored(module: nn.Module) -> int:
    """Trainable parameters that the module stores; a shared tensor counts once."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def megabytes(module: nn.Module) -> float:
    """Size of the tensors of its state dict in MB (10^6 bytes); a shared tensor counts once."""
    tensors = {id(tensor): tensor for tensor in module.state_dict(keep_vars=True).values()}
    return sum(tensor.nbytes for tensor in tensors.values()) / 1e6


def unshared(module: nn.Module) -> int:
    """Trainable parameters that the same model would store if every pass had a block to itself."""
    copies = 0
    for loop in named_loops(module).values():
        run = sum(stored(loop.blocks[which]) for which in loop.order)
        copies += run - sum(stored(block) for block in loop.blocks)
    return stored(module) + copies


def flops(run: Callable[[], object]) -> int:
    """Floating-point operations of the matrix products that a function runs, two for each multiply-accumulate.

    On the meta device nothing is computed, and attention counts as its two full products.
    """
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _OneCount()
    with counter:
        run()
    return counter.get_total_flops()


class _OneCount(nullcontext):
    """Stands in for torch's tracker of modules, which sets hooks on all modules.

    With hooks, layers must be called. Kausik's recurrent transformer, which otherwise computes from their weights (see
    :mod:`recurrence.papers.scan`), then runs more operations.
    """

    parents = ("Global",)


def macs(module: nn.Module, *inputs: Tensor) -> int:
    """Multiply-accumulates of one call, as fvcore counts them, and those of fused attention, which it leaves out.

    That is one for each product of linear layers, convolutions and matrix products, 5 for each element of a LayerNorm,
    nothing for activations and sums.

    Raises:
        ModuleNotFoundError: if fvcore is not installed.
    """
    return sum(operations(module, inputs, {ATTENTION: attention_products}).values())


def operations(module: nn.Module, inputs: tuple[Tensor, ...], rules: dict[str, Callable]) -> Counter[str]:
    """fvcore's count of one call by operator, with rules for operators for which it has none.

    A rule maps the inputs and outputs of an operator, as fvcore traces them, to its count.

    Raises:
        ModuleNotFoundError: if fvcore is not installed.
    """
    try:
        from fvcore.nn import FlopCountAnalysis
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("counting operations needs fvcore: pip install fvcore", name="fvcore") from error
    analysis = FlopCountAnalysis(module, inputs).set_op_handle(**rules)
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
    with torch.no_grad():
        return Counter({name: round(number) for name, number in analysis.by_operator().items()})


def shape(value: Any) -> list[int]:
    """The sizes of a traced tensor."""
    return value.type().sizes()


def attention_scores(inputs: list[Any]) -> int:
    """Attention scores of q (B, H, T, d) and k (B, H, S, d): B H T S."""
    *batch, targets, _ = shape(inputs[0])
    return prod(batch) * targets * shape(inputs[1])[-2]


def attention_products(inputs: list[Any], outputs: list[Any]) -> int:
    """Products of q with k and of the weights with v: 2 B H T S d where both have the width d."""
    return attention_scores(inputs) * (shape(inputs[0])[-1] + shape(inputs[2])[-1])
