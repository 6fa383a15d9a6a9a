"""The loop: order of blocks, shared parameters, activation checkpointing."""

import pytest
import torch
from torch import Tensor, nn

from recurrence.block import Shape
from recurrence.loop import Loop
from recurrence.papers.ringformer import Signals, ringformer
from tests.support import stacks


class Recorder(nn.Module):
    """A block that notes what it was called with and multiplies by a parameter of its own."""

    def __init__(self, name: int, calls: list):
        super().__init__()
        self.name, self.calls = name, calls
        self.factor = nn.Parameter(torch.tensor(float(name + 2)))

    def forward(self, x: Tensor, own=None, **arguments) -> Tensor:
        self.calls.append((self.name, x.item(), own, arguments))
        return x * self.factor


@pytest.mark.parametrize(
    ("passes", "indices", "read", "expected"),
    [
        (None, (0, 1, 2, 3), [1, 3, 11, 36], [2, 9, 33, 72]),  # ((((1 + 0) 2 + 1) 3 + 2) 3 + 3) 2
        (3, (0, 1, 2), [1, 3, 11], [2, 9, 33]),
        (6, (0, 1, 3, 2, 2, 3), [1, 3, 11, 25, 79, 242], [2, 9, 22, 75, 237, 484]),  # block 1 has no third run
        ((0, 2, 3), (0, 2, 3), [1, 3, 11], [2, 9, 22]),
        ((), (), [], []),
    ],
)
def test_blocks_run_in_order_with_the_arguments_of_their_pass(passes, indices, read, expected):
    """`own` belongs to a pass of the loop; levels and arguments are one for each pass that runs."""
    calls, states = [], []
    loop = Loop([Recorder(which, calls) for which in range(2)], (0, 1, 1, 0), [nn.Linear(1, 1) for _ in range(4)])
    assert tuple(loop.indices(passes)) == indices
    levels = [torch.tensor(float(level)) for level in range(len(indices))]
    given = dict(levels=levels, per_pass=dict(slot="abcdef", context=range(6)), causal=True)
    start = torch.tensor(1.0)
    assert loop(start, passes, states=states, **given) is [start, *states][-1]
    assert [state.item() for state in states] == expected
    assert calls == [
        (loop.order[index], x, loop.own[index], dict(slot="abcdef"[step], context=step, causal=True))
        for step, (index, x) in enumerate(zip(indices, read))
    ]


def test_without_what_passes_own_a_block_is_called_without_it():
    calls: list = []
    loop = Loop([Recorder(0, calls)], (0, 0), inject=(0,))
    assert loop(torch.tensor(1.0)) == 6  # 2 (2 + 1)
    assert [call[2:] for call in calls] == [(None, {})] * 2


def test_a_depth_that_the_order_does_not_have_is_rejected():
    loop = Loop([nn.Identity(), nn.Identity()], (0, 0, 1, 1))
    with pytest.raises(ValueError, match="^depth=3: the order 0 0 1 1 cannot run at this depth$"):
        loop(torch.zeros(1), 3)


def test_hooks_after_a_pass_see_and_change_its_state():
    calls: list = []
    loop, seen = Loop([Recorder(0, calls)], (0, 0, 0)), []
    loop.after[1].register_forward_hook(lambda _, inputs, y: seen.append(y.item()) or y + 1)
    assert loop(torch.tensor(1.0)) == 10  # (1 2 2 + 1) 2
    assert seen == [4]
    assert loop(torch.tensor(1.0), (1, 1)) == 7  # (1 2 + 1) 2 + 1
    assert not any(key.startswith("after") for key in loop.state_dict())


def test_checkpointing_recomputes_each_pass_and_changes_nothing_else():
    """Outputs and gradients are equal bit for bit, with dropout; nothing is recomputed without gradients."""
    found, kept, ran = [], [], []
    x = torch.randn(2, 5, 8)
    for checkpointing in (False, True):
        torch.manual_seed(0)
        loop = ringformer(Shape(8, 11, 2, dropout=0.3), (0, 1, 1, 0), Signals(2))
        loop.checkpointing, count = checkpointing, []
        loop.blocks[1].register_forward_pre_hook(lambda *_, count=count: count.append(1))
        with torch.no_grad():
            loop(x)
        loop.eval()(x)
        assert len(count) == 4
        torch.manual_seed(1)
        y = loop.train()(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), loop.parameters())])
        ran.append(len(count))
        kept.append(stacks.kept_for_backward(loop, loop, x.clone().requires_grad_()))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert ran == [6, 8]
    assert kept[1] < 0.6 * kept[0]


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


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "not noted"])
@pytest.mark.parametrize(
    ("which", "passes", "kept", "expected"),
    [
        ((0, 1, 1, 0), 4, [0, 1], (0, 1, 1, 0)),
        ((0, 0, 1, 1), 3, [0, 1], (0, 0, 1)),  # SEQUENCE with two blocks in four passes: 0 0 1 1, of 0 0 1: 0 0 0 1
        ((0, 1, 1, 0), 1, [0], (0,)),
        ((0, 1, 2, 0), 2, [0, 1], (0, 1)),
        ((0, 3, 1, 3, 2, 3), 4, [0, 1, 3], (0, 2, 1, 2)),
    ],
)
def test_a_truncated_loop_keeps_only_blocks_that_still_run(which, passes, kept, expected, noted):
    calls: list = []
    blocks = [Recorder(name, calls) for name in range(1 + max(which))]
    loop = Loop(blocks, which, [nn.Linear(1, 1) for _ in which], inject=range(1, len(blocks)))
    states, again = [], []
    loop(torch.tensor(1.0), states=states)
    own = list(loop.own)
    loop.note_order()
    weights = {key: tensor.clone() for key, tensor in loop.state_dict().items() if noted or key != "noted"}
    loop.truncate(passes)
    assert (loop.order, loop.passes, loop.whole) == (expected, passes, which)
    assert loop.inject == set(range(1, len(kept)))
    assert loop.state_dict()["noted"].tolist() == list(expected)
    assert [block.name for block in loop.blocks] == kept
    assert list(loop.own) == own[:passes]
    calls.clear()
    for parameter in loop.parameters():
        nn.init.zeros_(parameter)
    loop.load_state_dict(weights)  # of the whole loop
    loop(torch.tensor(1.0), states=again)
    assert again == states[:passes]
    assert [call[2] for call in calls] == own[:passes]
