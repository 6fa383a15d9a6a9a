"""Products by oneDNN are those of the plain form, gradients included."""

import gc
import itertools
import runpy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from recurrence import gemm
from recurrence import linear as module
from recurrence.linear import apply, linear
from recurrence.private_torch import is_plain


@pytest.fixture(autouse=True)
def _onednn(monkeypatch):
    """The machine's speed decides nothing here."""
    monkeypatch.setattr(gemm, "LIBRARY", "onednn")


needs_onednn = pytest.mark.skipif(gemm.onednn_linear is None, reason="this PyTorch has no oneDNN")


def operands(rows, bias=True, width=256, out=384, dtype=torch.float32):
    """x (3, rows, width), weight, bias and an upstream gradient, the same at every call."""
    generator = torch.Generator().manual_seed(rows)
    x, weight, b, grad = (
        torch.randn(shape, generator=generator, dtype=dtype)
        for shape in ((3, rows, width), (out, width), (out,), (3, rows, out))
    )
    return x.requires_grad_(), weight.requires_grad_(), b.requires_grad_() if bias else None, grad


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("rows", "sliced"), [(4, False), (5, False), (200, False), (20, True)])
def test_product_and_gradients_are_those_of_torch(rows, sliced, bias):
    """Also of slices of larger tensors, as they lie."""
    x, weight, b, grad = operands(rows, bias)
    leaves = [leaf for leaf in (x, weight, b) if leaf is not None]
    y, grad = (part[:, ::2].transpose(0, 1) if sliced else part for part in (x, grad))
    b = b.repeat_interleave(2)[::2] if bias and sliced else b
    ours, plain = linear(y, weight, b), F.linear(y, weight, b)
    assert type(ours.grad_fn).__name__ == "_LinearBackward"
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=2e-4)
    got, wanted = (torch.autograd.grad(y, leaves, grad) for y in (ours, plain))
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_take_the_plain_form(dtype):
    x, weight, b, _ = operands(4, dtype=dtype)
    assert linear(x, weight, b).equal(F.linear(x, weight, b))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert apply(nn.Linear(256, 384), torch.randn(5, 256)).dtype == torch.bfloat16


def test_switched_off_it_is_the_plain_form():
    x, weight, b, _ = operands(4)
    with torch.backends.mkldnn.flags(enabled=False):
        ours = linear(x, weight, b)
    assert ours.equal(F.linear(x, weight, b))
    assert type(ours.grad_fn).__name__ != "_LinearBackward"


@needs_onednn
def test_compiled_for_inference_it_is_the_same_product():
    called, product = [], module._product

    def recorded(*operands):
        called.append(operands)
        return product(*operands)

    layer, x = nn.Linear(256, 384), torch.randn(3, 40, 256)
    compiled = torch.compile(
        lambda x: apply(layer, x) + apply(layer, x.transpose(0, 1)).transpose(0, 1), backend="aot_eager", fullgraph=True
    )
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_product", recorded)
        torch.testing.assert_close(compiled(x), 2 * F.linear(x, layer.weight, layer.bias), rtol=1e-5, atol=2e-5)
    assert len(called) == 2
    assert compiled(x).requires_grad  # in training the compiler sees the plain operator
    assert len(called) == 2


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


@needs_onednn
def test_it_can_be_differentiated_twice():
    def second(product):
        x, weight, b, grad = operands(5)
        (first,) = torch.autograd.grad(product(x, weight, b).tanh(), x, grad, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (x, weight, b))

    torch.testing.assert_close(second(linear), second(F.linear), rtol=1e-4, atol=1e-1)


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
    """It knows torch's own operators, and does not count oneDNN's."""
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


@needs_onednn
@pytest.mark.parametrize(("blas", "chosen"), [(0.5, "mkl"), (0.9, "onednn"), (2.0, "onednn")])
def test_the_faster_library_is_measured_once(blas, chosen, monkeypatch):
    """In turn, by the shortest time; the BLAS has to be faster by a fifth."""
    times = itertools.cycle([1.0, blas, 9.0, 9.0])
    monkeypatch.setattr(gemm, "LIBRARY", "auto")
    monkeypatch.setattr(gemm, "_measured", None)
    monkeypatch.setattr(gemm, "timeit", lambda run, number: next(times))
    assert gemm.library() == chosen
    monkeypatch.setattr(gemm, "timeit", None)
    x, weight, b, _ = operands(200)
    assert (type(linear(x, weight, b).grad_fn).__name__ == "_LinearBackward") == (chosen == "onednn")


def test_an_unknown_library_is_rejected(monkeypatch):
    monkeypatch.setenv("RECURRENCE_GEMM", "blas")
    with pytest.raises(ValueError, match=r"^RECURRENCE_GEMM=blas: must be one of \('auto', 'onednn', 'mkl'\)"):
        runpy.run_path(gemm.__file__)


@needs_onednn
@pytest.mark.parametrize("rows", [4, 200])
def test_a_packed_weight_gives_the_same_product_until_it_changes(rows, monkeypatch):
    x, weight, b, grad = operands(rows)
    x, weight, b = x.detach(), nn.Parameter(weight.detach()), b.detach()
    multiplied = []
    product = module._product
    monkeypatch.setattr(module, "_product", lambda x, w, b=None: multiplied.append(w) or product(x, w, b))
    layer = nn.Linear(256, 384)
    layer.weight, layer.bias = weight, nn.Parameter(b)
    module.pack(nn.Sequential(layer))
    with torch.no_grad():
        torch.testing.assert_close(apply(layer, x), F.linear(x, weight, b), rtol=1e-5, atol=2e-4)
        assert multiplied.pop().is_mkldnn
        weight.mul_(2)
        torch.testing.assert_close(apply(layer, x), F.linear(x, weight, b), rtol=1e-5, atol=4e-4)
        assert multiplied.pop() is weight
    module.pack_weight(weight)
    apply(layer, x).backward(grad)
    assert not any(each.is_mkldnn for each in multiplied)
    with torch.inference_mode():
        module.pack_weight(made := torch.ones(384, 256))
        torch.testing.assert_close(linear(x, made), F.linear(x, made), rtol=1e-5, atol=2e-4)


@needs_onednn
def test_a_packed_weight_may_change_through_data():
    """As when peft merges LoRA, or fairseq's Adam moves it; torch then counts no new version."""
    x, weight, *_ = operands(4)
    x, weight = x.detach(), nn.Parameter(weight.detach())
    module.pack_weight(weight)
    version = weight._version
    weight.data += weight.data.roll(1, 0)
    assert weight._version == version
    with torch.no_grad():
        torch.testing.assert_close(linear(x, weight), F.linear(x, weight), rtol=1e-5, atol=4e-4)


@needs_onednn
def test_packed_data_are_freed_with_their_weight():
    weight = torch.ones(384, 256)
    before = len(module._packed)
    module.pack_weight(weight)
    assert len(module._packed) == before + 1
    del weight
    gc.collect()
    assert len(module._packed) == before
