"""The loop: order of blocks, shared parameters, activation checkpointing."""

import pytest
import torch
from torch import Tensor, nn

from recurrence.block import Shape
from recurrence.loop import Loop
from recurrence.papers.relaxed import relaxed
from recurrence.papers.ringformer import Signals, ringformer
from recurrence.papers.takase import shared_layers

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


def test_blocks_run_in_order_with_the_arguments_of_their_pass():
    calls: list = []
    blocks, own = [Recorder(which, calls) for which in range(2)], [nn.Linear(1, 1) for _ in range(4)]
    loop = Loop(blocks, (0, 1, 1, 0), own)
    states: list[Tensor] = []
    x = loop(
        torch.tensor(1.0),
        levels=[torch.tensor(float(level)) for level in range(4)],
        contexts=["for block 0", "for block 1", "for block 1", "for block 0"],
        slots=["a", "b", "c", "d"],
        states=states,
        causal=True,
    )
    # ((((1 + 0) 2 + 1) 3 + 2) 3 + 3) 2
    assert x.item() == 72
    assert [state.item() for state in states] == [2, 9, 33, 72]
    assert states[-1] is x
    assert [call[:2] for call in calls] == [(0, 1), (1, 3), (1, 11), (0, 36)]
    assert [call[2] for call in calls] == own
    assert [call[3] for call in calls] == ["for block 0", "for block 1", "for block 1", "for block 0"]
    assert [call[4] for call in calls] == ["a", "b", "c", "d"]
    assert all(call[5] == {"causal": True} for call in calls)


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


def test_only_the_chosen_passes_run():
    calls: list = []
    loop = Loop([Recorder(which, calls) for which in range(2)], (0, 1, 1, 0), [nn.Linear(1, 1) for _ in range(4)])
    states, levels = [], [torch.tensor(float(level)) for level in range(4)]
    x = loop(torch.tensor(1.0), levels=levels, slots="abcd", passes=(0, 2, 3), states=states)
    # (((1 + 0) 2 + 2) 3 + 3) 2
    assert x.item() == 30
    assert [state.item() for state in states] == [2, 12, 30]
    assert [call[2] for call in calls] == [loop.own[0], loop.own[2], loop.own[3]]
    assert [call[4] for call in calls] == ["a", "c", "d"]
    assert loop(torch.tensor(1.0), passes=()) == 1


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
    loop = Loop([Recorder(name, calls) for name in range(1 + max(which))], which, [nn.Linear(1, 1) for _ in which])
    states, again = [], []
    loop(torch.tensor(1.0), states=states)
    own = list(loop.own)
    loop.truncate(passes)
    assert loop.order == expected
    assert loop.passes == passes
    assert [block.name for block in loop.blocks] == kept
    assert list(loop.own) == own[:passes]
    calls.clear()
    loop(torch.tensor(1.0), states=again)
    assert again == states[:passes]
    assert [call[2] for call in calls] == own[:passes]


# Stacks

STACKS = {
    "levels in an encoder": lambda shape: ringformer(shape, 2, Signals(2)),
    "levels everywhere": lambda shape: ringformer(
        shape, 2, Signals(2, cross_attention_signal="after", signal_init="random"), memory_width=6
    ),
    "levels in a pre-norm stack": lambda shape: ringformer(shape, 2, Signals(2), pre_norm=True),
    "hidden levels": lambda shape: ringformer(shape, 2, Signals(None, None, "inside"), pre_norm=True),
    "low-rank terms": lambda shape: relaxed(shape, (0, 1, 0), 2, memory_width=6),
}


def stack(name: str) -> Loop:
    torch.manual_seed(0)
    loop = STACKS[name](Shape(WIDTH, 11, 2)).double()
    for parameter in loop.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return loop


def states() -> Tensor:
    """What stacks read, always the same."""
    torch.manual_seed(1)
    return torch.randn(2, 5, WIDTH, dtype=torch.float64)


def run(loop: Loop) -> Tensor:
    x, memory = states(), torch.randn(2, 4, 6, dtype=torch.float64)
    cross = [loop.blocks[which].cross_attn for which in loop.order]
    terms = [own.term("cross_kv") for own in loop.own]
    contexts = [None if part is None else part.project(memory, term) for part, term in zip(cross, terms)]
    return loop(x, contexts=contexts, causal=True)


# One block, written out


def norm(x: Tensor, layer: nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + layer.eps).sqrt() * layer.weight + layer.bias


def feed_forward(block: nn.Module, x: Tensor, extra: Tensor | float = 0.0) -> Tensor:
    hidden = (x @ block.ffn.up.weight.T + block.ffn.up.bias + extra).clamp(min=0)
    return hidden @ block.ffn.down.weight.T + block.ffn.down.bias


def post_norm(x: Tensor, block: nn.Module, own: nn.Module) -> Tensor:
    """RingFormer: a = LN1(x + att(x)), out = LN2(a + FFN(a + M a)); the residual has none of the signal."""
    a = norm(x + block.self_attn(x, x, qkv=own.qkv_signal, causal=True), own.norms[0])
    return norm(a + feed_forward(block, a + a @ own.ffn_signal.matrix()[0].T), own.norms[1])


def pre_norm(x: Tensor, block: nn.Module, own: nn.Module) -> Tensor:
    """RingFormer's vision block: signals read the raw stream, and the FFN's joins it before the norm."""
    y = x + block.self_attn(norm(x, own.norms[0]), x, qkv=own.qkv_signal, causal=True)
    return y + feed_forward(block, norm(y + y @ own.ffn_signal.matrix()[0].T, own.norms[1]))


def inside_the_ffn(x: Tensor, block: nn.Module, own: nn.Module) -> Tensor:
    n = norm(x, own.norms[0])
    y = x + block.self_attn(n, x, causal=True)
    return y + feed_forward(block, norm(y, own.norms[1]), y @ own.ffn_signal.matrix()[0].T)


@pytest.mark.parametrize(
    ("name", "run_pass"),
    [
        ("levels in an encoder", post_norm),
        ("levels in a pre-norm stack", pre_norm),
        ("hidden levels", inside_the_ffn),
    ],
)
def test_level_signals_join_where_they_should(name, run_pass):
    """Attention itself is checked elsewhere."""
    loop, x = stack(name), states()
    for own in loop.own:
        x = run_pass(x, loop.blocks[0], own)
    torch.testing.assert_close(run(loop), x)


def test_level_signals_in_cross_attention():
    """The second sublayer: queries W x + M x, keys and values W m + M m of the memory m."""
    loop = stack("levels everywhere")
    block, own = loop.blocks[0], loop.own[0]
    x, memory = states(), torch.randn(2, 4, 6, dtype=torch.float64)
    signals = own.cross_q_signal.matrix(), own.cross_kv_signal.matrix().flatten(0, 1)
    q, kv = (
        y @ (layer.weight + signal.view_as(layer.weight)).T + layer.bias
        for y, layer, signal in zip((x, memory), (block.cross_attn.q, block.cross_attn.kv), signals)
    )
    q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (q, *kv.chunk(2, dim=-1)))
    y = (q @ k.transpose(2, 3) / (WIDTH // 2) ** 0.5).softmax(-1) @ v
    context = block.cross_attn.project(memory, own.term("cross_kv"))
    got = block.cross_attn(x, context=context, q=own.term("cross_q"))
    torch.testing.assert_close(got, block.cross_attn.out(y.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda shape: relaxed(shape, (0, 0), 2, ("qkv", "kv")), r"terms=\('qkv', 'kv'\): must name some of \('qkv'"),
        (lambda shape: relaxed(shape, (0, 0), 2, ()), r"terms=\(\): must name some of"),
        (lambda shape: shared_layers(shape, (0, 0), (0.1, 1.2)), r"drop_path=1.2: must be a rate within \[0, 1\]"),
    ],
)
def test_rejected_stacks(build, message):
    with pytest.raises(ValueError, match=message):
        build(Shape(8, 16, 2))


def test_older_names_of_terms_are_read():
    """What is now `terms.qkv` and `terms.up` was called after level signals."""
    trained, used = stack("low-rank terms"), STACKS["low-rank terms"](Shape(WIDTH, 11, 2)).double()
    weights = trained.state_dict()
    for key in list(weights):
        old = key.replace("terms.qkv", "qkv_signal").replace("terms.up", "ffn_signal")
        weights[old] = weights.pop(key)
    assert sum("signal" in key for key in weights) == 3 * 2 * 3  # passes, projections, two factors and a bias
    used.load_state_dict(weights)
    torch.testing.assert_close(run(used), run(trained), rtol=0, atol=0)


def test_a_truncated_loop_injects_into_the_blocks_that_are_left():
    loop = Loop([Recorder(name, []) for name in range(4)], (0, 3, 1, 3, 2, 3), inject=(2, 3))
    states, again = [], []
    loop(torch.tensor(1.0), states=states)
    loop.chosen = (0, 5)
    loop.truncate(4)
    assert (loop.inject, loop.chosen) == ({2}, None)
    loop(torch.tensor(1.0), states=again)
    assert again == states[:4]
