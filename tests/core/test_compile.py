"""Blocks compiled for training: one graph for all passes, and the results of eager blocks."""

import copy

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from recurrence.block import Shape
from recurrence.loop import Loop
from recurrence.papers.ringformer import Signals, ringformer
from recurrence.papers.slices import SliceConfig
from recurrence.papers.sret import Recursion, sret
from recurrence.papers.takase import shared_layers
from timm_plugin._layers import DropPath

WIDTH, RATES = 8, (0.1, 0.2, 0.3, 0.4)
RECURSION = Recursion(projection_width=6, slices=SliceConfig(8, (2, 2, 2, 2), (True,) * 4))
# Loops of four passes, of one or two stored blocks.
LOOPS = {
    "ringformer": lambda shape: ringformer(shape, (0,) * 4, Signals(rank=2)),
    "ringformer of several blocks": lambda shape: ringformer(shape, (0, 1, 1, 0), Signals(2, "before", "inside")),
    "ringformer of images": lambda shape: ringformer(shape, (0,) * 4, Signals(rank=2), pre_norm=True),
    "cycle": lambda shape: shared_layers(shape, (0, 1, 1, 0)),
    "sret": lambda shape: sret(shape, (0, 0, 1, 1), RECURSION, pre_norm=True),
}
every_loop = pytest.mark.parametrize("make", LOOPS.values(), ids=list(LOOPS))


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def randomised(loop: Loop) -> Loop:
    torch.manual_seed(0)
    for parameter in loop.parameters():
        nn.init.normal_(parameter, std=0.3)
    return loop.train()


def tokens(batch: int) -> Tensor:
    """What an embedding gives, which has a gradient."""
    return torch.randn(batch, 8, WIDTH, generator=torch.Generator().manual_seed(batch)).requires_grad_()


@every_loop
def test_one_graph_serves_all_passes_rates_and_shapes_and_blocks_of_one_size(make):
    loop = randomised(make(Shape(WIDTH, 16, 2, dropout=0.1, attention_dropout=0.1)))
    for own, rate in zip(loop.own, RATES):
        own.drop_path = DropPath(rate)
    counter = CompileCounterWithBackend("eager")
    loop.compile_blocks(backend=counter, fullgraph=True)
    for batch in (3, 5, 2, 7):
        loop(tokens(batch)).sum().backward()
    assert counter.frame_count == 1


@pytest.mark.slow
@every_loop
def test_it_gives_the_same_outputs_and_gradients(make):
    loop, x = randomised(make(Shape(WIDTH, 16, 2))), tokens(3)
    compiled, found = copy.deepcopy(loop), []
    compiled.compile_blocks(backend="aot_eager")
    for each in (loop, compiled):
        torch.manual_seed(1)
        y = each(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), list(each.parameters()))])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_nothing_is_compiled_outside_training_nor_in_a_copy():
    loop, counter = randomised(shared_layers(Shape(WIDTH, 16, 2), (0, 0))), CompileCounterWithBackend("eager")
    names = list(loop.state_dict())
    loop.compile_blocks(backend=counter)
    assert list(loop.state_dict()) == names
    loop.eval()(tokens(2))
    copy.deepcopy(loop).train()(tokens(2))
    assert counter.frame_count == 0
    loop.train()(tokens(2))
    assert counter.frame_count == 1
