"""Relative positions: equal to the formula, for whole texts and token by token, with keys projected once per block."""

import math

import pytest
import torch
from torch import Tensor, nn

from recurrence.attention import SelfAttention
from recurrence.block import Shape
from recurrence.causal import LoopState, run_causal
from recurrence.loop import Loop
from recurrence.papers.takase import shared_layers
from recurrence.position import DistanceTable, Relative
from recurrence.weights.unshare import unshare
from tests.core.test_causal import random_states
from tests.support.stacks import randomise

EXACT = dict(rtol=0, atol=1e-12)
HIDDEN = float("-inf")


# The formula, one query and one key at a time (arXiv:1901.02860, section 3.3)


def sinusoid(distance: int, width: int) -> Tensor:
    """R of a distance: sines, then cosines."""
    angles = [distance / 10000 ** (2 * j / width) for j in range(width // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def relative_attention(layer: nn.Module, x: Tensor, causal: bool) -> Tensor:
    """The output of self-attention with relative positions for one text: (T, C) -> (T, C)."""
    (length, width), heads = x.shape, layer.heads
    qkv = [(x @ w.T + b).chunk(heads, 1) for w, b in zip(layer.qkv.weight.chunk(3), layer.qkv.bias.chunk(3))]
    own = layer.relative
    own = [part.chunk(heads) for part in (own.content_bias, own.position_bias, own.project.weight)]
    r = torch.stack([sinusoid(i - j, width) for i in range(length) for j in range(length)]).view(length, length, width)
    y = []
    for query, key, value, u, v, project in zip(*qkv, *own):
        scores = (query + u) @ key.T + torch.einsum("ic,ijc->ij", query + v, r @ project.T)
        scores = scores / math.sqrt(width / heads) + (causal_mask(length) if causal else 0)
        y.append(scores.softmax(1) @ value)
    return layer.out(torch.cat(y, dim=1))


def attention() -> SelfAttention:
    return randomise(SelfAttention(12, 3, bias=True, dropout=0.0, relative=True).double(), seed=0)


def causal_mask(length: int) -> Tensor:
    return torch.full((length, length), HIDDEN, dtype=torch.float64).triu(1)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_its_gradients_equal_the_formula(causal):
    layer, x = attention(), random_states(2, 7, 12).requires_grad_()
    keys = layer.relative.keys(DistanceTable(12).upto(7, 0 if causal else -6, x))
    found = layer(x, self_bias=causal_mask(7) if causal else None, distance_keys=keys)
    expected = torch.stack([relative_attention(layer, row, causal) for row in x])
    torch.testing.assert_close(found, expected, **EXACT)
    inputs = [x, *layer.parameters()]
    gradients = [torch.autograd.grad(y.square().sum(), inputs) for y in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)


def layers(order) -> tuple[Loop, Relative]:
    parts = dict(relative=True, pre_norm=True)
    return shared_layers(Shape(12, 20, 2), order, **parts).double(), Relative(12, causal=True)


def counted(loop: Loop) -> list:
    """The blocks whose keys are projected from now on."""
    calls: list = []
    for which, block in enumerate(loop.blocks):
        block.self_attn.relative.project.register_forward_hook(lambda *_, which=which: calls.append(which))
    return calls


@pytest.mark.parametrize("passes", [None, 7])
def test_keys_are_projected_once_for_each_stored_block(passes):
    loop, positions = layers((0, 1, 0, 1, 0))
    calls, x = counted(loop), random_states(2, 9, 12)
    run_causal(loop, x, positions, passes=passes)
    assert calls == [0, 1]


@torch.no_grad()
def test_decoding_keeps_the_keys_until_the_text_outgrows_them():
    loop, positions = layers((0, 0, 0))
    x, state = random_states(2, 70, 12), LoopState(loop)
    whole, calls = run_causal(loop, x, positions), counted(loop)
    steps = [run_causal(loop, step, positions, state=state) for step in x.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, **EXACT)
    assert len(calls) == 3  # for 32, 64 and 128 tokens


def test_relative_positions_are_not_unshared():
    with pytest.raises(ValueError, match="^relative positions: an upstream layer's scores do not depend on distances"):
        unshare(shared_layers(Shape(8, 16, 2), (0, 0), relative=True))
