"""Every layer of every paper is called as a module: hooks on all modules see each one and may change what it gives."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from recurrence.attention import CrossAttention
from recurrence.block import Shape
from recurrence.causal import LoopState, project_memory, run_causal
from recurrence.loop import Loop
from recurrence.papers.baselines import one_wide_ffn, vanilla
from recurrence.papers.ilr import llama_layers
from recurrence.papers.kausik import RecurrentStack
from recurrence.papers.ringformer import Signals, ringformer
from recurrence.papers.slices import SliceConfig
from recurrence.papers.sret import MixerBlock, Recursion, sret
from recurrence.papers.takase import shared_layers
from recurrence.position import attention_positions
from recurrence.relative import RelativeKeys
from tests.support import stacks

SHAPE, LENGTH, MEMORY_WIDTH = Shape(8, 12, 2), 6, 6
RECURSION = Recursion(projection_width=5, slices=SliceConfig(LENGTH, (2, 1, 2), (False, False, True)))
DECODER = dict(memory_width=MEMORY_WIDTH)


class Reader(NamedTuple):
    """A loop, and how it reads (B, T, C), all at once or in steps."""

    loop: nn.Module
    whole: Callable[[Tensor], Tensor]
    in_steps: Callable[[Tensor], Tensor] | None = None


def encoder(loop: Loop) -> Reader:
    return Reader(loop, loop)


def decoder(loop: Loop) -> Reader:
    """With relative positions and a memory, if its blocks have a use for them."""
    kinds, memory = {type(module) for module in loop.modules()}, torch.randn(2, 4, MEMORY_WIDTH, dtype=torch.float64)
    position = "relative" if RelativeKeys in kinds else "none"
    positions = attention_positions(position, SHAPE.width, SHAPE.heads, causal=True)

    def read(x: Tensor, state: LoopState | None = None) -> Tensor:
        contexts = project_memory(loop, memory) if CrossAttention in kinds else None
        return run_causal(loop, x, positions, state=state, contexts=contexts)

    def in_steps(x: Tensor) -> Tensor:
        state = LoopState(loop)
        return torch.cat([read(part, state) for part in x.split((4, 1, 1), dim=1)], dim=1)

    return Reader(loop, read, in_steps)


def recurrent(**options) -> Reader:
    stack = RecurrentStack(SHAPE, 2, **options)

    def in_steps(x: Tensor) -> Tensor:
        state = stack.new_state()
        return torch.cat([stack(part, None, state) for part in x.split((4, 1, 1), dim=1)], dim=1)

    return Reader(stack, stack, in_steps)


READERS = {
    "ringformer": lambda: encoder(ringformer(SHAPE, (0, 1, 1), Signals(2, "before", "inside"))),
    "ringformer of images": lambda: encoder(ringformer(SHAPE, (0, 0), Signals(2), pre_norm=True)),
    "ringformer's decoder": lambda: decoder(ringformer(SHAPE, (0, 1), Signals(2), relative=True, **DECODER)),
    "ringformer's decoder with signals on the memory": lambda: decoder(
        ringformer(SHAPE, (0, 0), Signals(2, "after", "before", "before"), **DECODER)
    ),
    "takase": lambda: encoder(shared_layers(SHAPE, (0, 1, 1, 0), pre_norm=True)),
    "takase's decoder": lambda: decoder(shared_layers(SHAPE, (0, 0), **DECODER)),
    "vanilla": lambda: encoder(vanilla(SHAPE, 2)),
    "one wide ffn": lambda: encoder(one_wide_ffn(SHAPE, 2)),
    "one wide ffn's decoder": lambda: decoder(one_wide_ffn(SHAPE, 2, **DECODER)),
    "ilr": lambda: decoder(llama_layers(SHAPE, (0, 1, 0, 1), inject=(0,), adapter=True, relative=True)),
    "sret": lambda: encoder(sret(SHAPE, (0, 0, 1), RECURSION, pre_norm=True)),
    "mixer": lambda: encoder(
        sret(SHAPE, (0, 0), Recursion(), block=MixerBlock, tokens=LENGTH, mixing_width=5, ffn_dropout=0.0)
    ),
    "kausik": recurrent,
    "kausik, accumulating": partial(recurrent, window=2, accumulate=True),
}


def build(name: str) -> tuple[Reader, Tensor]:
    torch.manual_seed(0)
    reader = READERS[name]()
    stacks.randomise(reader.loop.double(), 0).eval()
    return reader, torch.randn(2, LENGTH, SHAPE.width, dtype=torch.float64)


@contextmanager
def on_every_module(hook: Callable) -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", READERS)
def test_a_hook_on_all_modules_sees_every_layer_and_changes_it(name, training):
    reader, x = build(name)
    linear = {module: key for key, module in reader.loop.named_modules() if isinstance(module, nn.Linear)}
    reader.loop.train(training)
    with torch.set_grad_enabled(training):
        torch.manual_seed(1)
        expected, seen = reader.whole(x), set()
        with on_every_module(lambda module, *_: seen.add(module)):
            torch.manual_seed(1)
            torch.testing.assert_close(reader.whole(x), expected)
        assert linear.keys() <= seen
        for layer, key in linear.items():
            with on_every_module(lambda module, inputs, y, layer=layer: 1.5 * y if module is layer else None):
                torch.manual_seed(1)
                assert not torch.allclose(reader.whole(x), expected), key


@pytest.mark.parametrize("name", [name for name in READERS if READERS[name]().in_steps])
@torch.no_grad()
def test_decoding_calls_every_layer_as_reading_does(name):
    reader, x = build(name)
    linear = [module for module in reader.loop.modules() if isinstance(module, nn.Linear)]
    for layer in linear:
        handle = layer.register_forward_hook(lambda _, inputs, y: 1.5 * y)
        torch.testing.assert_close(reader.in_steps(x), reader.whole(x))
        handle.remove()
