"""Causal stacks: LLaMA's block, positions in attention, embedding injection, and the cache."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from recurrence import attention, position
from recurrence.cache import Cache
from recurrence.loop import Loop
from recurrence.papers.ilr import LlamaBlock, SwiGLU
from tests.support.llama import SHAPE, llama_stack, random_states

EXACT = dict(rtol=0, atol=1e-12)


# Positions


def test_rotation_turns_halves_of_each_head():
    x, heads, width = random_states(2, 5, 12), 2, 6
    cos, sin = position.rotary(5, width).chunk(2, dim=-1)
    found = attention.rotate(x, heads, cos, sin)
    for p in range(5):
        for head in range(heads):
            for m in range(3):
                a, b = (x[:, p, head * width + m + half] for half in (0, 3))
                angle = p * 10000 ** (-2 * m / width)
                expected = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
                for half, value in zip((0, 3), expected):
                    torch.testing.assert_close(found[:, p, head * width + m + half], value, **EXACT)


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [(1, [8]), (4, [2, 4, 6, 8]), (8, [1, 2, 3, 4, 5, 6, 7, 8]), (6, [2, 4, 6, 8, 1, 3]), (3, [4, 8, 2])],
)
def test_slopes(heads, exponents):
    assert position.alibi_slopes(heads).tolist() == [2.0**-exponent for exponent in exponents]


def test_linear_biases_of_all_queries_and_of_the_last():
    whole = position.alibi(4, 5, 0, like=random_states(1))
    assert whole.shape == (1, 4, 5, 5)
    assert whole[0, 1, 3].tolist() == [-(2**-4) * abs(key - 3) for key in range(5)]
    assert torch.equal(position.alibi(4, 5, 4, like=random_states(1)), whole[:, :, 4:])


# Block


def test_swiglu():
    torch.manual_seed(0)
    ffn, x = SwiGLU(12, 20).double(), random_states(2, 3, 12)
    gate, up = ffn.gate_up.weight.chunk(2)
    expected = F.linear(F.silu(x @ gate.T) * (x @ up.T), ffn.down.weight)
    torch.testing.assert_close(ffn(x), expected, **EXACT)


def test_norms_are_computed_in_float32():
    norm = LlamaBlock(SHAPE).norms[0].bfloat16()
    x = (1000 * random_states(4, 12)).bfloat16()
    wide = x.float()
    expected = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16()
    assert torch.equal(norm(x), expected)
    assert norm.eps == 1e-6


# Injection


class Record(nn.Module):
    """A block that doubles and writes down what it reads."""

    def __init__(self):
        super().__init__()
        self.read = []

    def forward(self, x, **kwargs):
        self.read.append(x.item())
        return 2 * x


@pytest.mark.parametrize(
    ("order", "inject", "expected"),
    [
        ((0, 0, 0), (), [[1, 2, 4]]),
        ((0, 0, 0), (0,), [[1, 2 + 1, 6 + 1]]),
        ((0, 0, 1, 1), (0, 1), [[1, 3], [6, 12 + 6]]),
        ((0, 1, 0, 1, 0, 1), (0,), [[1, 4 + 1, 20 + 1], [2, 10, 42]]),
    ],
)
def test_further_passes_get_the_input_of_the_first_again(order, inject, expected):
    loop = Loop([Record() for _ in range(1 + max(order))], order, inject=inject)
    loop(torch.ones(1))
    assert [block.read for block in loop.blocks] == expected


# The stack, in one go and in steps

ENCODINGS = ["none", "rotary", "alibi", "relative"]


@torch.no_grad()
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("steps", [[1] * 50, [50], [40] + [1] * 10, [7, 1, 1, 20, 1, 20]], ids=str)
def test_steps_of_any_length_equal_one_go(encoding, steps):
    model, x = llama_stack(encoding, inject=(0, 2)), random_states(2, 50, 12)
    state, parts, start = model.new_state(), [], 0
    for step in steps:
        parts.append(model(x[:, start : start + step], None, state))
        start += step
    torch.testing.assert_close(torch.cat(parts, dim=1), model(x), **EXACT)
    assert state.length == 50


@torch.no_grad()
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_padding_on_the_left_shifts_nothing(encoding):
    model, x = llama_stack(encoding), random_states(1, 9, 12)
    padded = torch.cat([random_states(1, 4, 12, seed=1), x], dim=1)
    padding = torch.tensor([[True] * 4 + [False] * 9])
    torch.testing.assert_close(model(padded, padding)[:, 4:], model(x), **EXACT)
    state = model.new_state()
    first = model(padded[:, :6], padding[:, :6], state)[:, 4:]
    rest = [model(padded[:, t : t + 1], padding[:, : t + 1], state) for t in range(6, 13)]
    torch.testing.assert_close(torch.cat([first, *rest], dim=1), model(x), **EXACT)


@torch.no_grad()
def test_a_state_is_rewound_and_reordered_with_its_injected_inputs():
    model, x, order = llama_stack(inject=(0, 2)), random_states(3, 12, 12), torch.tensor([2, 0, 0, 1])
    state = model.new_state()
    model(x[:, :4], None, state)
    state.run(x[:, 4:9], (0, 1), **model.arguments(x[:, 4:9], None, 4, state))  # as drafting looks ahead
    state.rewind(6)
    assert state.cache.lengths == [6, 6, 4, 4, 4]
    state.rewind(4)
    state.reorder(order)
    torch.testing.assert_close(model(x[order, 4:], None, state), model(x)[order, 4:], **EXACT)


def test_the_cache_grows_by_doubling():
    cache, seen = Cache(1), set()
    for _ in range(1000):
        cache.write(0, torch.ones(1, 1, 4), torch.ones(1, 1, 4))
        seen.add(cache._filled.size(0))
    assert seen == {32, 64, 128, 256, 512, 1024}


def test_reordering_to_the_same_order_moves_nothing():
    cache = Cache(1)
    cache.write(0, torch.ones(3, 5, 4), torch.ones(3, 5, 4))
    memory = cache._filled.data_ptr()
    cache.reorder(torch.arange(3))
    assert cache._filled.data_ptr() == memory
    cache.reorder(torch.tensor([0, 1]))
    assert cache._filled.data_ptr() != memory
    assert cache._filled.size(3) == 2
