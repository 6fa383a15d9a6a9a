"""Linear layers and what wraps, hooks, transforms, exports or counts them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from recurrence.linear import apply, linear
from recurrence.private_torch import is_plain


def operands(rows, bias=True, width=256, out=384, dtype=torch.float32):
    """x (3, rows, width), weight, bias and an upstream gradient, the same at every call."""
    generator = torch.Generator().manual_seed(rows)
    x, weight, b, grad = (
        torch.randn(shape, generator=generator, dtype=dtype)
        for shape in ((3, rows, width), (out, width), (out,), (3, rows, out))
    )
    return x.requires_grad_(), weight.requires_grad_(), b.requires_grad_() if bias else None, grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_take_the_plain_form(dtype):
    x, weight, b, _ = operands(4, dtype=dtype)
    assert linear(x, weight, b).equal(F.linear(x, weight, b))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert apply(nn.Linear(256, 384), torch.randn(5, 256)).dtype == torch.bfloat16


def test_exported_it_is_the_plain_operator():
    class Projection(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(256, 384)

        def forward(self, x):
            return apply(self.layer, x)

    with torch.no_grad():
        graph = torch.export.export(Projection(), (torch.randn(3, 40, 256),)).graph
    assert torch.ops.aten.linear.default in [node.target for node in graph.nodes]


TRANSFORMS = {
    "gradient of each sample": lambda f, x, w: torch.func.vmap(
        torch.func.grad(lambda w, x: f(x, w).square().sum()), in_dims=(None, 0)
    )(w, x),
    "jvp": lambda f, x, w: torch.func.jvp(f, (x, w), (w.new_ones(x.shape), w.new_ones(w.shape))),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_under_torch_func_it_is_the_plain_form(transform):
    x, weight, _, _ = operands(40)
    x, weight = x.detach(), weight.detach()
    got, wanted = (TRANSFORMS[transform](f, x, weight) for f in (linear, F.linear))
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("grad", [True, False])
def test_torchs_counter_sees_every_product(grad):
    layer, x = nn.Linear(256, 384), torch.randn(200, 256)
    with torch.set_grad_enabled(grad), FlopCounterMode(display=False) as counter:
        y = linear(apply(layer, x), layer.weight.t())
        if grad:
            y.sum().backward()
    assert counter.get_total_flops() == 2 * 200 * 256 * 384 * (2 + 3 * grad)


def test_forward_derivatives_pass_through_it():
    x, weight, _, tangent = operands(40, width=384)
    with torch.no_grad(), forward_ad.dual_level():
        got = forward_ad.unpack_dual(linear(forward_ad.make_dual(x.detach(), tangent), weight)).tangent
    torch.testing.assert_close(got, F.linear(tangent, weight))


CHANGES = {
    "hook": lambda layer: layer.register_forward_hook(lambda _, args, y: 2 * y),
    "hook before": lambda layer: layer.register_forward_pre_hook(lambda _, args: (args[0] + 1,)),
    "forward replaced": lambda layer: setattr(layer, "forward", lambda x: 2 * F.linear(x, layer.weight)),
    "weight parametrised": lambda layer: nn.utils.parametrize.register_parametrization(layer, "weight", nn.Tanh()),
    "weight normed": lambda layer: nn.utils.spectral_norm(layer),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_that_was_changed_runs_as_it_is(change):
    layer, x = nn.Linear(256, 384).eval(), torch.randn(3, 40, 256)
    before = apply(layer, x)
    assert is_plain(layer)
    CHANGES[change](layer)
    assert not is_plain(layer)
    assert not torch.allclose(before, layer(x))
    assert apply(layer, x).equal(layer(x))


def test_backward_hooks_fire():
    layer, seen = nn.Linear(256, 384), []
    layer.register_full_backward_hook(lambda *_: seen.append("after"))
    layer.register_full_backward_pre_hook(lambda *_: seen.append("before"))
    apply(layer, torch.randn(3, 40, 256, requires_grad=True)).sum().backward()
    assert seen == ["before", "after"]
