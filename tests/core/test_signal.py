"""Level signals against `W x + P1^T P2 x`, token by token."""

import itertools

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


def build(targets, out, rank, before):
    torch.manual_seed(0)
    signal = LevelSignal(targets, WIDTH, out, rank, before).double()
    for parameter in signal.parameters():
        nn.init.normal_(parameter)
    return signal, nn.Linear(WIDTH, targets * out).double()


def reference(signal, linear, x, raw, out):
    """(B, T, K * out): the paper's equations with one matrix-vector product at a time."""
    targets = []
    for k in range(signal.targets):
        w = linear.weight[k * out : (k + 1) * out]
        b = linear.bias[k * out : (k + 1) * out]
        tokens = []
        for token, raw_token in zip(x.flatten(0, 1), raw.flatten(0, 1)):
            full = signal.rank is None
            level = signal.full[k] @ raw_token if full else signal.up[k].T @ (signal.down[k] @ raw_token)
            tokens.append(w @ (token + level) + b if signal.before else w @ token + level + b)
        targets.append(torch.stack(tokens).view(*x.shape[:2], out))
    return torch.cat(targets, dim=-1)


@pytest.mark.parametrize("same_input", [True, False])
@pytest.mark.parametrize(("targets", "out", "rank", "before"), SHAPES)
def test_projection_and_its_gradients(targets, out, rank, before, same_input):
    signal, linear = build(targets, out, rank, before)
    x = torch.randn(2, 3, WIDTH, dtype=torch.float64, requires_grad=True)
    raw = x if same_input else torch.randn_like(x).requires_grad_()
    leaves = [x, *([] if same_input else [raw]), *signal.parameters(), *linear.parameters()]
    results = [signal.project(linear, x, raw), reference(signal, linear, x, raw, out)]
    torch.testing.assert_close(*results)
    weights = torch.randn_like(results[0])
    gradients = [torch.autograd.grad((result * weights).sum(), leaves) for result in results]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("targets", "out", "rank", "before"), SHAPES)
def test_the_layer_is_called_as_a_module_and_a_signal_before_it_calls_it_once_per_target(targets, out, rank, before):
    signal, linear = build(targets, out, rank, before)
    seen, x = [], torch.randn(2, 3, WIDTH, dtype=torch.float64)
    expected = signal.project(linear, x, x)
    linear.register_forward_hook(lambda layer, inputs, y: seen.append(inputs[0]) or y + 1)
    torch.testing.assert_close(signal.project(linear, x, x), expected + 1)
    assert len(seen) == (targets if before else 1)
    levels = torch.einsum("koi,bti->kbto", signal.matrix(), x)
    for target, given in enumerate(seen):
        torch.testing.assert_close(given, x + levels[target] if before else x)


@pytest.mark.parametrize(("targets", "out", "rank", "before"), SHAPES)
def test_signal_starts_at_zero(targets, out, rank, before):
    signal, layer, x = (
        LevelSignal(targets, WIDTH, out, rank, before),
        nn.Linear(WIDTH, targets * out),
        torch.randn(7, WIDTH),
    )
    assert not signal.matrix().any()
    torch.testing.assert_close(signal.project(layer, x[None], x[None]), layer(x)[None])
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
@pytest.mark.parametrize("before", [False, True])
def test_in_half_precision_it_is_the_plain_sum(before, autocast):
    """As in the published code: signal and projection are rounded, then their sum."""
    signal, layer = (part.float() for part in build(3, WIDTH, 2, before))
    x = torch.randn(2, 5, WIDTH)
    exact = signal.project(layer, x, x)
    if not autocast:
        signal, layer, x = signal.bfloat16(), layer.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = signal.project(layer, x, x)
        low = x @ signal.down.flatten(0, 1).T
        levels = [low.chunk(3, dim=-1)[target] @ signal.up[target] for target in range(3)]
        if before:
            plain = torch.cat(
                [layer(x + level).chunk(3, dim=-1)[target] for target, level in enumerate(levels)], dim=-1
            )
        else:
            plain = layer(x) + torch.cat(levels, dim=-1)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, plain)
    assert (found - exact).abs().mean() < 0.02 * exact.abs().mean()
