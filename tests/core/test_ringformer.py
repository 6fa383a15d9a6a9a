"""RingFormer in any order against its equations, with each pass's own norms and signals at every place."""

import pytest
import torch
from torch import Tensor

from recurrence.block import Shape
from recurrence.causal import project_memory
from recurrence.loop import Loop
from recurrence.papers.ringformer import NO_SIGNALS, Signals, ringformer
from tests.support import stacks
from tests.support.reference import Weights, attend, layer_norm, linear

WIDTH, HEADS, MEMORY_WIDTH = 8, 2, 6
SHAPE = Shape(WIDTH, 11, HEADS)
PLACES = {
    "of the paper": Signals(2),
    "full rank": Signals(None),
    "before and inside": Signals(2, "before", "inside"),
    "full rank, before": Signals(None, "before", "before", "before"),
    "after, in cross-attention, too": Signals(3, "after", "inside", "after"),
    "before, in cross-attention, too": Signals(3, "before", "before", "before"),
    "of attention alone": Signals(2, ffn_signal=None),
    "of the FFN alone": Signals(2, attention_signal=None),
    "none": NO_SIGNALS,
}
every_place = pytest.mark.parametrize("signals", PLACES.values(), ids=list(PLACES))


# The equations, sentence by sentence: x (T, C), memory (S, its width)


def level(w: Weights, signal: str, k: int, x: Tensor) -> Tensor:
    """M x of the k-th target."""
    m = w[f"{signal}.full"][k] if f"{signal}.full" in w else w[f"{signal}.up"][k].T @ w[f"{signal}.down"][k]
    return x @ m.T


def projected(w: Weights, layer: str, targets: int, x: Tensor, signal: str, source: Tensor, place: str | None) -> list:
    """W x + M s, W (x + M s) or W x, of each target."""
    biases = w[f"{layer}.bias"].chunk(targets) if f"{layer}.bias" in w else [0] * targets
    found = []
    for k, (weight, bias) in enumerate(zip(w[f"{layer}.weight"].chunk(targets), biases)):
        read = x + level(w, signal, k, source) if place == "before" else x
        y = read @ weight.T + bias
        found.append(y + level(w, signal, k, source) if place in ("after", "inside") else y)
    return found


def by_hand(w: Weights, order: tuple, x: Tensor, memory: Tensor | None, signals: Signals, pre_norm: bool) -> Tensor:
    for index, which in enumerate(order):
        block, own = f"blocks.{which}", f"own.{index}"
        on_attention, on_cross = signals.attention_signal, signals.cross_attention_signal

        def norm(number: int, x: Tensor, own: str = own) -> Tensor:
            return layer_norm(w, f"{own}.norms.{number}", x, eps=1e-5)

        n = norm(0, x) if pre_norm else x
        q, k, v = projected(w, f"{block}.self_attn.qkv", 3, n, f"{own}.qkv_signal", x, on_attention)
        x = x + linear(w, f"{block}.self_attn.out", attend(q, k, v, HEADS, causal=memory is not None))
        x = x if pre_norm else norm(0, x)
        if memory is not None:
            n = norm(1, x) if pre_norm else x
            (q,) = projected(w, f"{block}.cross_attn.q", 1, n, f"{own}.cross_q_signal", x, on_cross)
            k, v = projected(w, f"{block}.cross_attn.kv", 2, memory, f"{own}.cross_kv_signal", memory, on_cross)
            x = x + linear(w, f"{block}.cross_attn.out", attend(q, k, v, HEADS, causal=False))
            x = x if pre_norm else norm(1, x)
        last = 1 if memory is None else 2
        if pre_norm and signals.ffn_signal == "before":  # the norm reads the sum
            hidden = linear(w, f"{block}.ffn.up", norm(last, x + level(w, f"{own}.ffn_signal", 0, x)))
        else:
            n = norm(last, x) if pre_norm else x
            (hidden,) = projected(w, f"{block}.ffn.up", 1, n, f"{own}.ffn_signal", x, signals.ffn_signal)
        x = x + linear(w, f"{block}.ffn.down", hidden.relu())
        x = x if pre_norm else norm(last, x)
    return x


def tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def build(order: tuple, signals: Signals, **parts) -> Loop:
    torch.manual_seed(0)
    return stacks.randomise(ringformer(SHAPE, order, signals, **parts).double(), 0)


def run(loop: Loop, x: Tensor, memory: Tensor | None, **options) -> Tensor:
    if memory is None:
        return loop(x, **options)
    cross = [dict(context=context) for context in project_memory(loop, memory, options.get("passes"))]
    return loop(x, per_pass=dict(cross=cross), causal=True, **options)


@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no biases"])
@pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("order", [(0, 1, 1, 2), (0, 0, 0)], ids=str)
@every_place
def test_it_equals_its_equations_and_their_gradients(signals, order, side, pre_norm, bias):
    if pre_norm and "before" in (signals.attention_signal, signals.cross_attention_signal):
        with pytest.raises(ValueError, match="a signal before the projection needs a post-norm block"):
            build(order, signals, pre_norm=True)
        return
    memory_width = MEMORY_WIDTH if side == "decoder" else None
    loop = build(order, signals, pre_norm=pre_norm, bias=bias, memory_width=memory_width)
    w, x = dict(loop.named_parameters()), tokens(2, 5, WIDTH)
    memory = None if memory_width is None else tokens(2, 4, memory_width)
    found = run(loop, x, memory)
    rows = [by_hand(w, order, row, None if memory is None else memory[b], signals, pre_norm) for b, row in enumerate(x)]
    expected = torch.stack(rows)
    torch.testing.assert_close(found, expected)
    upstream = tokens(2, 5, WIDTH)
    gradients = [torch.autograd.grad((y * upstream).sum(), list(w.values())) for y in (found, expected)]
    torch.testing.assert_close(*gradients)


@every_place
@torch.no_grad()
def test_at_another_depth_a_pass_keeps_its_norms_and_signals(signals):
    """As a loop of that depth whose passes own what the passes that run do."""
    loop, x, memory = build((0, 1, 1, 2), signals, memory_width=MEMORY_WIDTH), tokens(2, 5, WIDTH), tokens(2, 4, 6)
    for passes in (3, 6):
        indices = loop.indices(passes)
        order = tuple(loop.order[index] for index in indices)
        other = Loop(loop.blocks, order, [loop.own[index] for index in indices])
        assert torch.equal(run(loop, x, memory, passes=passes), run(other, x, memory))
        assert not torch.allclose(run(loop, x, memory, passes=passes), run(loop, x, memory))


def test_keys_and_values_of_a_memory_are_projected_once_for_each_block():
    """Once for each pass where passes have signals on them."""
    memory = tokens(2, 4, MEMORY_WIDTH)
    for place, expected in ((None, [0, 1, 2]), ("after", [0, 1, 1, 2]), ("before", [0, 0, 1, 1, 1, 1, 2, 2])):
        loop = build((0, 1, 1, 2), Signals(2, cross_attention_signal=place), memory_width=MEMORY_WIDTH)
        calls: list = []
        for which, block in enumerate(loop.blocks):
            block.cross_attn.kv.register_forward_hook(lambda *_, which=which, calls=calls: calls.append(which))
        contexts = project_memory(loop, memory)
        assert calls == expected
        assert (contexts[1] is contexts[2]) == (place is None)


def test_graphs_of_a_loop_compute_the_same():
    """torch.fx and torch.export trace it with what passes own, at inference."""

    class Stack(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.loop = build((0, 1, 1, 0), Signals(2)).eval()

        def forward(self, x):
            return self.loop(x, causal=True)

    stack, x = Stack(), tokens(2, 5, WIDTH)
    torch.testing.assert_close(torch.fx.symbolic_trace(stack)(x), stack(x))
    torch.testing.assert_close(torch.export.export(stack, (x,)).module()(x), stack(x))


def test_transforms_of_torch_func():
    loop, x = build((0, 1, 1, 0), Signals(2, "before", "inside")), tokens(3, 4, WIDTH)
    parameters = dict(loop.named_parameters())

    def loss(parameters, row):
        return torch.func.functional_call(loop, parameters, (row[None],)).square().sum()

    of_each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for b, row in enumerate(x):
        expected = torch.autograd.grad(loss(parameters, row), list(parameters.values()))
        torch.testing.assert_close([of_each[name][b] for name in parameters], list(expected))
    _, slope = torch.func.jvp(lambda x: loop(x).square().sum(), (x,), (x,))
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loop(leaf).square().sum(), leaf)
    torch.testing.assert_close(slope, (gradient * x).sum())
