"""The loop: order of blocks, shared parameters, activation checkpointing."""

import pytest
import torch
from torch import Tensor, nn

from recurrence.block import Shape
from recurrence.loop import Loop
from recurrence.papers.relaxed import relaxed
from recurrence.papers.ringformer import Signals, ringformer
from tests.support import stacks

WIDTH = 8


class Recorder(nn.Module):
    """A block that notes what it was called with and multiplies by a parameter of its own."""

    def __init__(self, name: int, calls: list):
        super().__init__()
        self.name, self.calls = name, calls
        self.factor = nn.Parameter(torch.tensor(float(name + 2)))

    def forward(self, x: Tensor, own=None, context=None, slot=None, **shared) -> Tensor:
        self.calls.append((self.name, x.item(), own, context, slot, shared))
        return x * self.factor


@pytest.mark.parametrize(
    ("indices", "read", "expected"),
    [
        (None, [1, 3, 11, 36], [2, 9, 33, 72]),  # ((((1 + 0) 2 + 1) 3 + 2) 3 + 3) 2
        ((0, 2, 3), [1, 4, 15], [2, 12, 30]),  # (((1 + 0) 2 + 2) 3 + 3) 2
        ((), [], []),
    ],
)
def test_blocks_run_in_order_with_the_arguments_of_their_pass(indices, read, expected):
    calls, states, contexts = [], [], ["for block 0", "for block 1", "for block 1 again", "for block 0 again"]
    loop = Loop([Recorder(which, calls) for which in range(2)], (0, 1, 1, 0), [nn.Linear(1, 1) for _ in range(4)])
    levels = [torch.tensor(float(level)) for level in range(4)]
    given = dict(levels=levels, contexts=contexts, slots="abcd", indices=indices, causal=True)
    start = torch.tensor(1.0)
    assert loop(start, states=states, **given) is [start, *states][-1]
    assert [state.item() for state in states] == expected
    assert calls == [
        (loop.order[index], x, loop.own[index], contexts[index], "abcd"[index], {"causal": True})
        for index, x in zip(range(4) if indices is None else indices, read)
    ]


@pytest.mark.parametrize(
    ("which", "own", "message"),
    [
        ((), None, r"order=\(\): needs at least one pass"),
        ((0, 2), None, r"order=\(0, 2\): names block 2, but there are 2 blocks"),
        ((0, -1), None, r"order=\(0, -1\): names block -1"),
        ((0, 0), None, r"order=\(0, 0\): block 1 of 2 never runs"),
        ((0, 1, 0), 2, "own has 2 entries: needs one for each of the 3 passes"),
    ],
)
def test_wrong_arguments_are_rejected(which, own, message):
    blocks = [nn.Identity(), nn.Identity()]
    with pytest.raises(ValueError, match=message):
        Loop(blocks, which, own and [nn.Identity() for _ in range(own)])


@pytest.mark.parametrize(
    ("which", "passes", "kept", "expected"),
    [
        ((0, 1, 1, 0), 4, [0, 1], (0, 1, 1, 0)),
        ((0, 1, 1, 0), 1, [0], (0,)),
        ((0, 1, 2, 0), 2, [0, 1], (0, 1)),
        ((0, 3, 1, 3, 2, 3), 4, [0, 1, 3], (0, 2, 1, 2)),
    ],
)
def test_a_truncated_loop_keeps_only_blocks_that_still_run(which, passes, kept, expected):
    calls: list = []
    blocks = [Recorder(name, calls) for name in range(1 + max(which))]
    loop = Loop(blocks, which, [nn.Linear(1, 1) for _ in which], inject=range(1, len(blocks)))
    states, again = [], []
    loop(torch.tensor(1.0), states=states)
    own, loop.chosen = list(loop.own), (0, len(which) - 1)
    loop.note_order()
    loop.truncate(passes)
    assert (loop.order, loop.passes, loop.chosen) == (expected, passes, None)
    assert loop.inject == set(range(1, len(kept)))
    assert loop.state_dict()["noted"].tolist() == list(expected)
    assert [block.name for block in loop.blocks] == kept
    assert list(loop.own) == own[:passes]
    calls.clear()
    loop(torch.tensor(1.0), states=again)
    assert again == states[:passes]
    assert [call[2] for call in calls] == own[:passes]


# Level signals where no published code has them


SHAPE = Shape(WIDTH, 11, 2)


def tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_level_signals_join_the_hidden_units_of_the_ffn():
    loop = stacks.randomise(ringformer(SHAPE, 2, Signals(2, None, "inside"), pre_norm=True).double(), 0)
    x = tokens(2, 5, WIDTH)
    block, found = loop.blocks[0], loop(x, causal=True)
    for own in loop.own:
        y = x + block.self_attn(own.norms[0](x), x, causal=True)
        x = y + block.ffn.down((block.ffn.up(own.norms[1](y)) + y @ own.ffn_signal.matrix()[0].T).relu())
    torch.testing.assert_close(found, x)


def test_level_signals_in_cross_attention():
    """The second sublayer: queries W x + M x, keys and values W m + M m of the memory m."""
    signals = Signals(2, cross_attention_signal="after")
    loop = stacks.randomise(ringformer(SHAPE, 2, signals, memory_width=6).double(), 0)
    block, own, x, memory = loop.blocks[0], loop.own[0], tokens(2, 5, WIDTH), tokens(2, 4, 6)
    signals = own.cross_q_signal.matrix(), own.cross_kv_signal.matrix().flatten(0, 1)
    q, kv = (
        y @ (layer.weight + signal.view_as(layer.weight)).T + layer.bias
        for y, layer, signal in zip((x, memory), (block.cross_attn.q, block.cross_attn.kv), signals)
    )
    q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (q, *kv.chunk(2, dim=-1)))
    y = (q @ k.transpose(2, 3) / (WIDTH // 2) ** 0.5).softmax(-1) @ v
    context = block.cross_attn.project(memory, own.term("cross_kv"))
    got = block.cross_attn(x, context=context, q_term=own.term("cross_q"))
    torch.testing.assert_close(got, block.cross_attn.out(y.transpose(1, 2).flatten(2)))


def test_older_names_of_terms_are_read():
    """What is now `terms.qkv` and `terms.up` was called after level signals."""
    trained, used = (stacks.randomise(relaxed(SHAPE, (0, 1, 0), 2).double(), seed) for seed in (0, 1))
    weights = trained.state_dict()
    for key in list(weights):
        old = key.replace("terms.qkv", "qkv_signal").replace("terms.up", "ffn_signal")
        weights[old] = weights.pop(key)
    assert sum("signal" in key for key in weights) == 3 * 2 * 3  # passes, projections, two factors and a bias
    used.load_state_dict(weights)
    assert torch.equal(used(tokens(2, 5, WIDTH)), trained(tokens(2, 5, WIDTH)))
