"""Level signals against `W x + P1^T P2 x`, token by token, in each of their forms."""

import itertools
import math

import pytest
import torch
from torch import nn

from recurrence.papers.ringformer import LevelSignal, Signals

WIDTH = 8
# targets, output width, rank, before the projection
SHAPES = [
    *itertools.product([3], [WIDTH], [2, 5, WIDTH, None], [False, True]),  # Q, K and V
    *itertools.product([1], [20], [3, None], [False, True]),  # the FFN: inside, before
]


def build(targets, out, rank, before, bias=True):
    torch.manual_seed(0)
    signal = LevelSignal(targets, WIDTH, out, rank, before).double()
    for parameter in signal.parameters():
        nn.init.normal_(parameter)
    return signal, nn.Linear(WIDTH, targets * out, bias=bias).double()


def reference(signal, linear, x, raw, out):
    """(K, B, T, out): the paper's equations with one matrix-vector product at a time."""
    targets = []
    for k in range(signal.targets):
        w = linear.weight[k * out : (k + 1) * out]
        b = 0 if linear.bias is None else linear.bias[k * out : (k + 1) * out]
        tokens = []
        for token, raw_token in zip(x.flatten(0, 1), raw.flatten(0, 1)):
            level = signal.up[k].T @ (signal.down[k] @ raw_token) if signal.low_rank else signal.full[k] @ raw_token
            tokens.append(w @ (token + level) + b if signal.before else w @ token + level + b)
        targets.append(torch.stack(tokens).view(*x.shape[:2], out))
    return torch.stack(targets)


@pytest.mark.parametrize("tokens", [(1, 1), (2, 3), (5, 10)], ids=str)
@pytest.mark.parametrize("same_input", [True, False])
@pytest.mark.parametrize(("targets", "out", "rank", "before"), SHAPES)
def test_projection_and_its_gradients(targets, out, rank, before, same_input, tokens):
    signal, linear = build(targets, out, rank, before)
    x = torch.randn(*tokens, WIDTH, dtype=torch.float64, requires_grad=True)
    raw = x if same_input else torch.randn_like(x).requires_grad_()
    leaves = [x, *([] if same_input else [raw]), *signal.parameters(), *linear.parameters()]
    results = [signal.project(linear, x, raw), reference(signal, linear, x, raw, out)]
    torch.testing.assert_close(*results)
    weights = torch.randn_like(results[0])
    gradients = [torch.autograd.grad((result * weights).sum(), leaves) for result in results]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("targets", "out", "rank", "before"), [shape for shape in SHAPES if shape[2] == 2])
def test_both_forms_are_in_use(targets, out, rank, before, monkeypatch):
    signal, linear = build(targets, out, rank, before)
    folded, fold = [], signal.fold
    monkeypatch.setattr(signal, "fold", lambda *args: folded.append(1) or fold(*args))
    few, many = (torch.randn(1, tokens, WIDTH, dtype=torch.float64) for tokens in (1, 200))
    signal.project(linear, few, few)
    assert not folded
    signal.project(linear, many, many)
    assert folded


@pytest.mark.parametrize(("targets", "out", "rank", "before"), SHAPES)
def test_signal_starts_at_zero(targets, out, rank, before):
    signal = LevelSignal(targets, WIDTH, out, rank, before)
    assert torch.equal(signal(torch.randn(7, WIDTH)), torch.zeros(targets, 7, WIDTH if before else out))
    assert rank is None or 0 < signal.down.abs().max() < 1e-5  # N(0, 1e-6)


@pytest.mark.parametrize("rank", [16, None])
def test_random_start(rank):
    """Each factor as the weight of a PyTorch Linear that does what it does."""
    torch.manual_seed(0)
    signal = LevelSignal(3, 256, 128, rank, before=False, init="random")
    factors = [(signal.full, 256)] if rank is None else [(signal.down, 256), (signal.up, rank)]
    for factor, inputs in factors:
        expected = nn.Linear(inputs, 128).weight
        assert factor.std().item() == pytest.approx(expected.std().item(), rel=0.05)
        assert factor.abs().max().item() == pytest.approx(inputs**-0.5, rel=0.01)


def test_a_rank_above_the_width_is_rejected():
    with pytest.raises(ValueError, match="rank=9: must be >= 1 and <= width=8"):
        Signals(9).check(8, False)


@pytest.mark.parametrize("autocast", [False, True], ids=["pure", "autocast"])
@pytest.mark.parametrize("tokens", [512, 8])
@pytest.mark.parametrize("before", [False, True])
def test_small_signals_reach_the_output_in_half_precision(before, tokens, autocast):
    """A signal of RMS 1e-4 arrives in full on average, although bfloat16 is 40 times as coarse."""
    torch.manual_seed(0)
    signal, layer = LevelSignal(3, 128, 128, 8, before), nn.Linear(128, 384)
    x = torch.randn(8192 // tokens, tokens, 128).bfloat16().float()
    nn.init.normal_(signal.down, std=128**-0.5)
    nn.init.normal_(signal.up)
    with torch.no_grad():
        for parameter in (*signal.parameters(), *layer.parameters()):
            parameter.copy_(parameter.bfloat16())
        none = LevelSignal(3, 128, 128, 8, before)
        signal.up.mul_(2.0 ** round(math.log2(1e-4 / (signal.project(layer, x, x) - none.project(layer, x, x)).std())))
        exact = signal.project(layer, x, x) - none.project(layer, x, x)
        if not autocast:
            for module in (signal, none, layer):
                module.bfloat16()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            parts = [part[None] for part in (x if autocast else x.bfloat16())]
            found = [signal.project(layer, part, part) - none.project(layer, part, part) for part in parts]
        found = torch.cat(found, dim=1).float()
    assert (found * exact).sum() / exact.square().sum() == pytest.approx(1, abs=0.2)
