"""Causal stacks: the norms of LLaMA's block, and a state that goes back."""

import pytest
import torch
from torch import nn

from recurrence.block import Shape
from recurrence.causal import CausalStack
from recurrence.elastic import at_depths
from recurrence.papers.ilr import LlamaBlock, llama_layers
from recurrence.position import LevelTable, attention_positions

EXACT = dict(rtol=0, atol=1e-12)
SHAPE = Shape(12, 20, 2, norm_eps=1e-6)


def random_states(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def llama_stack() -> CausalStack:
    """A float64 stack in eval mode that injects its input twice."""
    torch.manual_seed(0)
    loop = llama_layers(SHAPE, (0, 0, 1, 2, 2), inject=(0, 2))
    positions = attention_positions("none", SHAPE.width, SHAPE.heads, causal=True)
    return CausalStack(loop, positions, nn.RMSNorm(12)).double().eval()


def test_norms_are_computed_in_float32():
    norm = LlamaBlock(SHAPE).norms[0].bfloat16()
    x = (1000 * random_states(4, 12)).bfloat16()
    wide = x.float()
    expected = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16()
    assert torch.equal(norm(x), expected)
    assert norm.eps == 1e-6


@torch.no_grad()
def test_an_adapter_joins_the_state_and_the_input_of_the_stack():
    loop, x = llama_layers(SHAPE, (0, 1, 0, 1), inject=(0,), adapter=True), random_states(3, 4, 12).float()
    once = loop.blocks[1](loop.blocks[0](x))
    of_state, of_input = loop.join.matrix.weight.chunk(2, dim=1)
    expected = loop.blocks[1](loop.blocks[0](once @ of_state.T + x @ of_input.T))
    torch.testing.assert_close(loop(x), expected)


@torch.no_grad()
@pytest.mark.parametrize("levels", [None, LevelTable(12, with_position=True)])
def test_no_more_passes_run_than_have_a_level_or_a_slot(levels):
    model = CausalStack(llama_layers(SHAPE, (0, 0)), level_table=levels).double()
    with at_depths({model.loop: 3}), pytest.raises(ValueError, match="^3 passes: must be <= 2, as each has one static"):
        model(random_states(3, 4, 12), state=None if levels else model.new_state())


@torch.no_grad()
def test_a_state_is_rewound_and_reordered_with_its_injected_inputs():
    model, x, order = llama_stack(), random_states(3, 12, 12), torch.tensor([2, 0, 0, 1])
    state = model.new_state()
    model(x[:, :4], None, state)
    state.run(x[:, 4:9], (0, 1), **model.arguments(x[:, 4:9], None, 4, state))  # as drafting looks ahead
    state.rewind(6)
    assert state.cache.lengths == [6, 6, 4, 4, 4]
    state.rewind(4)
    state.reorder(order)
    torch.testing.assert_close(model(x[order, 4:], None, state), model(x)[order, 4:], **EXACT)
