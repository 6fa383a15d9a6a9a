"""The dropout module: its masks from 16-bit parts of random numbers, and when it is PyTorch's own."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad

from recurrence.parts import STEPS, Dropout


def same_as_torchs(x: torch.Tensor, rate: float) -> bool:
    """Whether the module draws what `F.dropout` does."""
    torch.manual_seed(3)
    found = Dropout(rate)(x)
    torch.manual_seed(3)
    return torch.equal(found, F.dropout(x, rate))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.999])
def test_elements_are_dropped_at_the_rate_and_the_others_scaled_by_it(rate):
    torch.manual_seed(0)
    y = Dropout(rate)(torch.ones(400_003))
    dropped = round(rate * STEPS) / STEPS
    assert torch.equal(y.unique(), torch.tensor([0, 1 / (1 - dropped)]))
    deviation = (rate * (1 - rate) / len(y)) ** 0.5
    assert y.eq(0).double().mean().item() == pytest.approx(dropped, abs=4 * deviation)


def test_the_parts_of_a_number_are_independent():
    torch.manual_seed(0)
    kept = Dropout(0.25)(torch.ones(100_000, 4)).ne(0).double()
    torch.testing.assert_close(kept.mean(0), torch.full((4,), 0.75).double(), rtol=0, atol=4 * 0.0014)
    torch.testing.assert_close(kept.T.corrcoef(), torch.eye(4).double(), rtol=0, atol=4 * 0.0032)


def test_gradients_are_those_of_what_was_kept():
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    dropout = Dropout(0.25)

    def repeated(x):
        torch.manual_seed(1)
        return dropout(x)

    mask = repeated(x) / x
    assert set(mask.detach().unique().tolist()) == {0, 4 / 3}
    (gradient,) = torch.autograd.grad(repeated(x).square().sum(), x)
    torch.testing.assert_close(gradient, 2 * x * mask.square())
    assert torch.autograd.gradcheck(repeated, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(repeated, x)


def test_a_seed_repeats_the_masks_and_successive_masks_differ():
    x, found = torch.ones(7, 9), []
    for _ in range(2):
        torch.manual_seed(1)
        found.append([Dropout(0.5)(x) for _ in range(2)])
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][0], found[0][1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_type_and_the_shape_stay(dtype):
    for x in (torch.ones(3, 5, 7, dtype=dtype).transpose(0, 2), torch.ones(0, 4, dtype=dtype)):
        y = Dropout(0.25)(x)
        assert (y.dtype, y.shape) == (dtype, x.shape)


def test_extreme_rates():
    x = torch.randn(3, 4, requires_grad=True)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout(1e-9)(x), x)
    y = Dropout(1.0)(x)
    assert torch.equal(y, torch.zeros(3, 4))
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.zeros(3, 4))


# As torch's module


def test_it_is_torchs_module_whose_rate_and_mode_act():
    dropout, x = Dropout(0.5), torch.ones(1000)
    assert isinstance(dropout, nn.Dropout)
    assert not dropout.state_dict()
    dropout.p = 0.9
    assert 0.8 < dropout(x).eq(0).double().mean() < 1
    dropout.p = 0.0
    assert torch.equal(dropout(x), x)
    dropout.p = 0.5
    assert torch.equal(dropout.eval()(x), x)
    assert dropout.train()(x).eq(0).any()
    assert copy.deepcopy(dropout).p == 0.5
    with pytest.raises(ValueError, match="between 0 and 1"):
        Dropout(1.5)


def test_hooks_see_and_change_what_it_gives():
    dropout, seen = Dropout(0.5), []
    dropout.register_forward_pre_hook(lambda module, inputs: seen.append(inputs))
    dropout.register_forward_hook(lambda module, inputs, y: torch.zeros_like(y))
    assert not dropout(torch.ones(9)).any()
    assert len(seen) == 1


def test_under_transforms_it_is_torchs():
    x = torch.ones(3, 1000)
    rows = torch.func.vmap(Dropout(0.5), randomness="different")(x)
    assert not torch.equal(rows[0], rows[1])
    torch.manual_seed(3)
    slopes = torch.func.grad(lambda x: Dropout(0.25)(x).sum())(x)
    torch.manual_seed(3)
    assert torch.equal(slopes, F.dropout(x, 0.25))
    assert set(slopes.unique().tolist()) == {0, torch.tensor(4 / 3).item()}
    _, tangent = torch.func.jvp(Dropout(0.25), (x,), (2 * x,))
    assert set(tangent.unique().tolist()) == {0, torch.tensor(8 / 3).item()}


def test_forward_derivatives_pass_through_it():
    x = torch.randn(40)
    with forward_ad.dual_level():
        y, tangent = forward_ad.unpack_dual(Dropout(0.5)(forward_ad.make_dual(x, torch.full_like(x, 3.0))))
    torch.testing.assert_close(tangent, 3 * y.ne(0).float() * 2)


def test_traced_compiled_and_exported_graphs_have_torchs_operator():
    x = torch.ones(3, 50)
    traced = torch.fx.symbolic_trace(Dropout(0.5))
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"] == [F.dropout]
    compiled = torch.compile(Dropout(0.25), backend="eager", fullgraph=True)
    torch.manual_seed(3)
    found = compiled(x)
    torch.manual_seed(3)
    assert torch.equal(found, F.dropout(x, 0.25))
    exported = torch.export.export(Dropout(0.5), (x,)).graph
    assert torch.ops.aten.dropout.default in [node.target for node in exported.nodes]


def test_a_subclass_of_a_tensor_gets_torchs_operator():
    class Marked(torch.Tensor):
        pass

    y = Dropout(0.5)(torch.ones(20).as_subclass(Marked))
    assert type(y) is Marked
    assert set(y.tolist()) <= {0.0, 2.0}
    assert same_as_torchs(nn.Parameter(torch.ones(20)), 0.5)
    assert not same_as_torchs(torch.ones(20), 0.5)
