"""What a model stores and what it runs.

Operations are counted by fvcore, which is optional (`pip install fvcore`), on the plain forms of all operators.
"""

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from recurrence.loop import named_loops
from recurrence.signal import LevelSignal

ATTENTION = "aten::scaled_dot_product_attention"


def stored(module: nn.Module) -> int:
    """Trainable parameters that the module stores; a shared tensor counts once."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


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
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def passes(module: nn.Module) -> int:
    """Effective depth: passes of all loops of the module together."""
    return sum(loop.passes for loop in named_loops(module).values())


def macs(module: nn.Module, *inputs: Tensor) -> int:
    """Multiply-accumulates of one call, as fvcore counts them, and those of fused attention, which it leaves out.

    That is one for each product of linear layers, convolutions and matrix products, 5 for each element of a LayerNorm,
    nothing for activations and sums.

    Raises:
        ModuleNotFoundError: if fvcore is not installed.
    """
    return sum(_operations(module, inputs, {ATTENTION: _attention_products}).values())


def ringformer_flops(module: nn.Module, *inputs: Tensor) -> Counter[str]:
    """Operations of one call by RingFormer's rule, by operator; the sum is what the paper calls FLOPs.

    To :func:`macs` the rule adds one for each element of a sum, difference or quotient (of attention, the division of
    the scores by the root of the head width) and 6 for each element of a GELU.

    Differs from the paper's figure for RingFormer's own vision model, see :func:`published_ringformer_flops`.

    Source: RingFormer (arXiv:2502.13181), section 4.2, "FLOP Comparison", and the counting of its published code.

    Raises:
        ModuleNotFoundError: if fvcore is not installed.
    """
    rules = {f"aten::{name}": _elements(1) for name in ("add", "sub", "div")}
    rules["aten::gelu"] = _elements(6)
    rules[ATTENTION] = lambda inputs, outputs: _attention_products(inputs, outputs) + _scores(inputs)
    return _operations(module, inputs, rules)


def published_ringformer_flops(module: nn.Module, *inputs: Tensor) -> Counter[str]:
    """As :func:`ringformer_flops`, of the form in which the published code computes level signals.

    That form multiplies the two factors of each signal out to C x C and applies the product to every token, which
    fvcore counts as if it were one token. This gives 19.03 G for RingFormer's vision model of Table 3. The work that
    this form really does is 24.58 G; without multiplying out it is 18.34 G.

    Source: RingFormer (arXiv:2502.13181), section 4.2, "FLOP Comparison", and its published code.

    Raises:
        ModuleNotFoundError: if fvcore is not installed.
    """
    module = copy.deepcopy(module)
    for signal in (child for child in module.modules() if isinstance(child, LevelSignal) and child.low_rank):
        signal.forward = partial(_multiplied_out, signal)
    return ringformer_flops(module, *inputs)


def _multiplied_out(signal: LevelSignal, x: Tensor) -> Tensor:
    """M x of every target, M multiplied out, target by target: (N, C) -> (K, N, out)."""
    factors = zip(signal.up, signal.down)
    return torch.stack([((up.T @ down) @ x[..., None]).squeeze(-1) for up, down in factors])


def _operations(module: nn.Module, inputs: tuple[Tensor, ...], rules: dict[str, Callable]) -> Counter[str]:
    """fvcore's count of one call by operator, with rules for operators for which it has none."""
    try:
        from fvcore.nn import FlopCountAnalysis
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("counting operations needs fvcore: pip install fvcore", name="fvcore") from error
    analysis = FlopCountAnalysis(module, inputs).set_op_handle(**rules)
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
    with torch.no_grad():
        return Counter({name: round(number) for name, number in analysis.by_operator().items()})


def _shape(value: Any) -> list[int]:
    return value.type().sizes()


def _scores(inputs: list[Any]) -> int:
    """Attention scores of q (B, H, T, d) and k (B, H, S, d): B H T S."""
    *batch, targets, _ = _shape(inputs[0])
    return prod(batch) * targets * _shape(inputs[1])[-2]


def _attention_products(inputs: list[Any], outputs: list[Any]) -> int:
    """Products of q with k and of the weights with v: 2 B H T S d where both have the width d."""
    return _scores(inputs) * (_shape(inputs[0])[-1] + _shape(inputs[2])[-1])


def _elements(scale: int) -> Callable[[list[Any], list[Any]], int]:
    return lambda inputs, outputs: scale * prod(_shape(outputs[0]))
