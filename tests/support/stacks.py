"""Helpers for any model with loops, of fairseq or timm: random parameters, untied copies, gradients, memory, logs."""

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recurrence.loop import Loop, named_loops


def randomise(model: nn.Module, seed: int, noise: float = 0.3) -> nn.Module:
    """Adds noise to every parameter, including level signals that start at zero and LayerNorms.

    Output projections are scaled down, so that sublayers add little to the residual stream. Otherwise, after many
    post-norm passes, a random stack gives nearly the same output for every input, and a test could hardly fail.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if re.search(r"\.(out|down)\.(weight|bias)$", name):
                parameter *= 0.15
    return model


def as_type(inputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Inputs for a model of another type: images and speech are numbers, words are not."""
    return tuple(part.to(dtype) if part.is_floating_point() else part for part in inputs)


def untied(model: nn.Module) -> nn.Module:
    """A copy in which every pass has its own block."""
    model = copy.deepcopy(model)
    for name, loop in named_loops(model).items():
        blocks = [copy.deepcopy(loop.blocks[which]) for which in loop.order]
        apart = Loop(blocks, tuple(range(loop.passes)), loop.own).train(loop.training)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, apart)
    return model


def summed_by_block(gradients: dict[str, Tensor], tied: nn.Module) -> dict[str, Tensor]:
    """Gradients of an untied copy under the tied model's names: summed over the copies of each block."""
    orders, found = {name: loop.order for name, loop in named_loops(tied).items()}, {}
    for key, gradient in gradients.items():
        loop, blocks, rest = key.partition(".blocks.")
        if blocks:
            index, _, rest = rest.partition(".")
            key = f"{loop}.blocks.{orders[loop][int(index)]}.{rest}"
        found[key] = found.get(key, 0) + gradient
    return found


def gradients_of(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """The gradient of every parameter that has one."""
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def kept_for_backward(model: nn.Module, run: Callable, *inputs: Any) -> int:
    """Bytes that a run keeps for the backward pass, counting each tensor once and no weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run(*inputs)
    return sum(tensor.untyped_storage().nbytes() for where, tensor in found.items() if where not in weights)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Uses deterministic algorithms and fills uninitialised memory with NaN."""
    settings = torch.utils.deterministic
    fill, deterministic = settings.fill_uninitialized_memory, torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        settings.fill_uninitialized_memory = fill


def depth_log(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages logged when a checkpoint is loaded at another depth than its own."""
    return [record.getMessage() for record in caplog.records if record.name == "recurrence.loading"]


def parameters(module: ModuleType) -> Iterator[tuple[Any, str, Any]]:
    """The parametrization of each test function of a module: names, the function, values."""
    for name, function in vars(module).items():
        for mark in getattr(function, "pytestmark", ()):
            if name.startswith("test_") and mark.name == "parametrize":
                names, values = mark.args
                yield names, name, values
