"""Causal stacks: the norms of LLaMA's block, decoding in steps at any depth, and the table of levels."""

from functools import partial

import pytest
import torch
from torch import nn

from recurrence.attention import attention_weights
from recurrence.block import Pass, Shape
from recurrence.causal import CausalStack, LoopState, project_memory, run_causal
from recurrence.loop import Loop
from recurrence.papers.ilr import LlamaBlock, llama_layers
from recurrence.papers.ringformer import Signals, ringformer
from recurrence.papers.scan_step import split_heads
from recurrence.papers.takase import shared_layers
from recurrence.position import AttentionPositions, LevelTable, attention_positions, depth_time
from tests.support import stacks

EXACT = dict(rtol=0, atol=1e-12)
SHAPE, ORDER = Shape(12, 20, 2, norm_eps=1e-6), (0, 1, 1, 2)


def random_states(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def llama_stack() -> CausalStack:
    """A float64 stack in eval mode that injects its input twice."""
    torch.manual_seed(0)
    loop = llama_layers(SHAPE, (0, 0, 1, 2, 2), inject=(0, 2))
    positions = attention_positions("none", SHAPE.width, SHAPE.heads, causal=True)
    return CausalStack(loop, positions, nn.RMSNorm(12)).double().eval()


def test_norms_are_computed_in_float32():
    norm = LlamaBlock(SHAPE, pre_norm=True, relative=False).norms[0].bfloat16()
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


def llama(relative: bool) -> tuple[Loop, None]:
    return llama_layers(SHAPE, ORDER, inject=(1,), relative=relative), None


def translator(relative: bool, **signals: str) -> tuple[Loop, torch.Tensor]:
    """The decoder of a RingFormer, and its memory."""
    loop = ringformer(SHAPE, ORDER, Signals(3, **signals), memory_width=7, relative=relative)
    return loop, random_states(3, 4, 7)


LOOPS = {
    "llama": llama,
    "ringformer": translator,
    "ringformer with signals on the memory": partial(translator, cross_attention_signal="before"),
}


@torch.no_grad()
@pytest.mark.parametrize("passes", [3, None, 6])
@pytest.mark.parametrize("kind", ["none", "rotary", "alibi", "relative"])
@pytest.mark.parametrize("make", LOOPS.values(), ids=list(LOOPS))
def test_steps_and_reordered_batches_equal_whole_texts_at_every_depth(make, kind, passes):
    """Also deeper than the loop's own order, because slots belong to the passes that run."""
    torch.manual_seed(0)
    loop, memory = make(kind == "relative")
    loop = stacks.randomise(loop.double(), 0).eval()
    positions = attention_positions(kind, SHAPE.width, SHAPE.heads, causal=True)
    x, order = random_states(3, 9, 12), torch.tensor([2, 0, 0, 1])
    padding = torch.zeros(3, 9, dtype=torch.bool)
    padding[1, :2] = True  # before a text

    def read(x, padding, state=None, rows=slice(None)):
        contexts = None if memory is None else project_memory(loop, memory[rows], passes)
        return run_causal(loop, x, positions, None, padding, state, passes, contexts=contexts)

    state = LoopState(loop, passes)
    read(x[:, :4], padding[:, :4], state)
    state.reorder(order)
    steps = [read(x[order, t : t + 1], padding[order, : t + 1], state, order) for t in range(4, 9)]
    expected = read(x, padding)[order, 4:]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, **EXACT)


@torch.no_grad()
def test_recorded_weights_of_the_memory_are_those_of_the_last_pass():
    torch.manual_seed(0)
    loop, memory = translator(relative=False)
    loop, seen, record = stacks.randomise(loop.double(), 0).eval(), [], []
    attention, contexts = loop.blocks[2].cross_attn, project_memory(loop, memory)
    attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    run_causal(loop, random_states(3, 9, 12), AttentionPositions(), contexts=contexts, record=record)
    q, k = (split_heads(each, SHAPE.heads) for each in (attention.q(*seen), contexts[-1].chunk(2, dim=-1)[0]))
    torch.testing.assert_close(record, [attention_weights(q, k).mean(1)], **EXACT)


@torch.no_grad()
def test_the_memory_of_a_depth_has_the_signals_of_its_passes():
    """Not those of as many first passes."""
    torch.manual_seed(0)
    loop, memory = translator(relative=False, cross_attention_signal="before")
    loop = stacks.randomise(loop.double(), 0).eval()
    of_all, of_three = project_memory(loop, memory), project_memory(loop, memory, 3)
    assert [[torch.equal(one, other) for other in of_all].index(True) for one in of_three] == [0, 1, 3]


@torch.no_grad()
@pytest.mark.parametrize("with_position", [True, False])
def test_a_level_table_has_a_row_for_every_pass_that_runs(with_position):
    """At another depth, those of a loop of that depth."""
    torch.manual_seed(0)
    loop, x, table = shared_layers(SHAPE, (0, 0)).double(), random_states(3, 5, 12), LevelTable(12, with_position)
    for passes in (1, 2, 3):
        other = Loop(loop.blocks, (0,) * passes, [Pass(2)] * passes)
        rows = depth_time(5, 12)
        y = x
        for level in range(passes):
            y = other(y + rows[level] + (rows if with_position else 0), (level,), causal=True)
        torch.testing.assert_close(run_causal(loop, x, AttentionPositions(), table, passes=passes), y, **EXACT)


@torch.no_grad()
def test_a_stack_keeps_its_norm_for_the_end_and_reads_a_depth_step_by_step():
    stack, x = llama_stack(), random_states(3, 7, 12)
    states: list[torch.Tensor] = []
    y = stack(x, states=states)
    assert torch.equal(y, states[-1])
    torch.testing.assert_close(stack.finish(y), stack.norm(y))
    stack.loop = llama_layers(SHAPE, (0, 0)).double()
    state = stack.new_state(passes=4)
    steps = [stack(part, None, state, passes=4) for part in x.split((3, 1, 3), dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), stack(x, passes=4), **EXACT)
    assert not torch.allclose(stack(x, passes=4), stack(x))
    assert state.cache.length == 7


def test_decoding_rejects_gradients():
    stack = llama_stack()
    with pytest.raises(RuntimeError, match="torch.no_grad"):
        stack(random_states(1, 1, 12), None, stack.new_state())


def test_a_depth_that_an_order_does_not_have_is_rejected():
    stack, x = llama_stack(), random_states(1, 2, 12)
    for call in (lambda: stack(x, passes=4), lambda: stack.new_state(4), lambda: project_memory(stack.loop, x, 4)):
        with pytest.raises(ValueError, match="^depth=4: the order 0 0 1 2 2 cannot run at this depth"):
            call()
