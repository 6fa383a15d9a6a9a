"""Dropout from 16-bit parts of random numbers, beside PyTorch's."""

import pytest
import torch
import torch.nn.functional as F

from recurrence.parts import STEPS, _Dropout, dropout, kept


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.999])
def test_elements_are_dropped_at_the_rate_and_the_others_scaled_by_it(rate):
    torch.manual_seed(0)
    y = dropout(torch.ones(400_003), rate, training=True)
    dropped = round(rate * STEPS) / STEPS
    assert torch.equal(y.unique(), torch.tensor([0, 1 / (1 - dropped)]))
    deviation = (rate * (1 - rate) / len(y)) ** 0.5
    assert y.eq(0).double().mean().item() == pytest.approx(dropped, abs=4 * deviation)


def test_the_parts_of_a_number_are_independent():
    torch.manual_seed(0)
    lanes = kept((100_000, 4), 0.25, torch.device("cpu")).double()
    torch.testing.assert_close(lanes.mean(0), torch.full((4,), 0.75).double(), rtol=0, atol=4 * 0.0014)
    torch.testing.assert_close(lanes.T.corrcoef(), torch.eye(4).double(), rtol=0, atol=4 * 0.0032)


def test_gradients_are_those_of_what_was_kept():
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(1)
    y = dropout(x, 0.25, training=True)
    mask = y / x
    assert set(mask.detach().unique().tolist()) == {0, 4 / 3}
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    torch.testing.assert_close(gradient, 2 * x * mask.square())
    keep = mask.ne(0)
    assert torch.autograd.gradcheck(lambda x: _Dropout.apply(x, keep, 4 / 3), x)
    assert torch.autograd.gradgradcheck(lambda x: _Dropout.apply(x, keep, 4 / 3), x)


def test_a_seed_repeats_the_masks_and_successive_masks_differ():
    x, found = torch.ones(7, 9), []
    for _ in range(2):
        torch.manual_seed(1)
        found.append([dropout(x, 0.5, training=True) for _ in range(2)])
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][0], found[0][1])


def test_extreme_rates():
    x = torch.randn(3, 4)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0, training=True) is x
    assert torch.equal(dropout(x, 1.0, training=True), F.dropout(x, 1.0))
    assert torch.equal(dropout(x, 1e-6, training=True), x)
    assert dropout(x[:0], 0.5, training=True).shape == (0, 4)


def test_under_torch_func_and_in_graphs_it_is_torchs():
    x = torch.ones(3, 1000)
    rows = torch.func.vmap(lambda row: dropout(row, 0.5, training=True), randomness="different")(x)
    assert not torch.equal(rows[0], rows[1])
    traced = torch.fx.symbolic_trace(lambda x: dropout(x, 0.5, training=True))
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"] == [F.dropout]
