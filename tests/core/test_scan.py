"""The recurrence along the sequence against the formula written as published, one window of two chunks at a time."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.block import Shape
from recurrence.papers.kausik import RecurrentBlock, RecurrentStack
from recurrence.papers.scan import _Scan
from recurrence.papers.scan_step import Factors, Spec, Weights
from tests.support import stacks
from tests.support.golden import golden
from tests.support.scan_reference import published

WIDTH, HEADS = 12, 3
VARIANTS = [(window, accumulate) for window in (1, 2, 3, 5) for accumulate in (False, True)]
every_variant = pytest.mark.parametrize(("window", "accumulate"), VARIANTS)
some_variants = pytest.mark.parametrize(("window", "accumulate"), [(1, False), (3, False), (1, True), (2, True)])


def block(window: int = 1, accumulate: bool = False, **options) -> RecurrentBlock:
    """A float64 block in eval mode; nothing is at its initial value."""
    torch.manual_seed(0)
    made = RecurrentBlock(Shape(WIDTH, 2 * WIDTH, HEADS, **options), F.gelu, window, accumulate).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return made.eval()


def inputs(length: int, batch: int = 2, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=generator)


def with_gradients(function, module: nn.Module, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of the input and of all parameters, for a loss that counts each output apart."""
    x = x.clone().requires_grad_()
    y = function(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return [y, *torch.autograd.grad((y * weights).sum(), [x, *module.parameters()])]


def expect_published(layer: RecurrentBlock, x: Tensor, tolerance: float = 1e-10) -> None:
    """The layer computes the formula as published, and its gradients."""
    expected = with_gradients(functools.partial(published, layer), layer, x)
    torch.testing.assert_close(with_gradients(layer, layer, x), expected, atol=tolerance, rtol=tolerance)


@every_variant
@pytest.mark.parametrize("length", [1, 2, 3, 7, 10])
def test_equals_the_formula_as_published(window, accumulate, length):
    expect_published(block(window, accumulate), inputs(length))


PARTS = ["self_attn.qkv", "self_attn.out", "ffn.up", "ffn.down", "norms.0", "norms.1"]
PARTS += ["self_attn", "ffn", "sublayer", "sublayer.dropout", "ffn.dropout"]


class Wrapped(nn.Module):
    """A module around another, as adapters make it: twice the output."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, *inputs, **options):
        return 2 * self.inner(*inputs, **options)


@some_variants
@pytest.mark.parametrize("part", PARTS)
def test_parts_with_hooks_are_called_at_every_step(part, window, accumulate):
    layer, x, seen = block(window, accumulate), inputs(7), []
    expected = with_gradients(layer, layer, x)
    handle = layer.get_submodule(part).register_forward_hook(lambda *_: seen.append(part))
    torch.testing.assert_close(with_gradients(layer, layer, x), expected, atol=1e-10, rtol=1e-10)
    assert len(seen) >= -(-7 // window) + 1
    handle.remove()
    layer.get_submodule(part).register_forward_hook(lambda _, inputs, y: 2 * y)
    assert not torch.allclose(layer(x), expected[0])


@some_variants
def test_a_hook_on_all_modules_sees_every_step(window, accumulate):
    layer, x, seen = block(window, accumulate), inputs(7), []
    expected = with_gradients(layer, layer, x)
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    try:
        torch.testing.assert_close(with_gradients(layer, layer, x), expected, atol=1e-10, rtol=1e-10)
    finally:
        handle.remove()
    for part in ("self_attn.qkv", "self_attn.out", "ffn.up", "ffn.down"):
        calls = sum(module is layer.get_submodule(part) for module in seen)
        assert calls == -(-7 // window) + 1, part  # one per window, and one for all outputs


@some_variants
@pytest.mark.parametrize("part", ["self_attn.qkv", "self_attn.out", "ffn.down", "norms.1", "ffn", "ffn.dropout"])
def test_wrapped_parts_are_called(part, window, accumulate):
    """With twice the output, as of a hook."""
    layer, reference = block(window, accumulate), block(window, accumulate)
    parent, _, child = part.rpartition(".")
    setattr(layer.get_submodule(parent), child, Wrapped(layer.get_submodule(part)))
    reference.get_submodule(part).register_forward_hook(lambda _, inputs, y: 2 * y)
    x = inputs(7)
    torch.testing.assert_close(layer(x), reference(x), atol=1e-10, rtol=1e-10)


@every_variant
def test_transforms_of_torch_func(window, accumulate):
    layer, x = block(window, accumulate), inputs(4)
    expected = torch.autograd.functional.jacobian(layer, x)
    torch.testing.assert_close(torch.func.jacrev(layer)(x), expected)
    torch.testing.assert_close(torch.func.vmap(lambda x: layer(x[None])[0])(x), layer(x))


def test_equals_the_formula_in_float32():
    torch.manual_seed(0)
    expect_published(RecurrentBlock(Shape(256, 1024, 4)), torch.randn(3, 12, 256), tolerance=2e-4)


@some_variants
@pytest.mark.parametrize("activation", [F.gelu, F.relu], ids=["gelu", "relu"])
def test_backward_pass_of_the_scan(window, accumulate, activation):
    """gradcheck of the hand-written backward pass, with fixed dropout."""
    torch.manual_seed(0)
    steps, batch, width, heads, hidden, dropout = 3, 2, 4, 2, 6, 0.3
    queries = window * (1 + accumulate)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64).requires_grad_()

    tokens = steps, batch, queries
    shapes = (steps, batch, heads, queries, 2 * window), (*tokens, width), (*tokens, hidden), (*tokens, width)
    factors = Factors(*(torch.rand(shape).ge(dropout).double() / (1 - dropout) for shape in shapes))
    spec = Spec(window, heads, accumulate, 1e-5, activation)
    weights = Weights(
        random(width), random((2 + accumulate) * width, width), random(width, width), random(width),
        random(hidden, width), random(width, hidden),
    )  # fmt: skip
    qkv = None if accumulate else random(steps, batch, window, 3 * width)
    arguments = random(batch, queries, width), random(steps, batch, window, width), qkv, *weights
    torch.autograd.gradcheck(functools.partial(_Scan.apply, spec, factors), arguments)


@every_variant
def test_dropout_of_rate_0_is_exact_and_every_application_has_its_own_mask(window, accumulate):
    layer, x = block(window, accumulate, dropout=0.0, attention_dropout=0.0), inputs(9)
    torch.testing.assert_close(layer.train()(x), layer.eval()(x), atol=0, rtol=0)
    layer = block(window, accumulate, dropout=0.5).train()
    # With equal inputs everywhere and no attention to tell positions apart, only masks differ.
    with torch.no_grad():
        layer.self_attn.out.weight.zero_()
        y = layer(inputs(1, batch=1).expand(3, 9, WIDTH))
    rows = y.flatten(0, 1)
    assert len({tuple(row.tolist()) for row in rows}) == len(rows)


@pytest.mark.parametrize("rates", [dict(dropout=0.4), dict(attention_dropout=0.4), dict(activation_dropout=0.4)])
@pytest.mark.parametrize("window", [1, 2])
def test_dropout_has_the_distribution_of_the_formula(rates, window):
    """Mean and deviation of the outputs over many masks, against torch's dropout in the formula as published."""
    layer, samples = block(window, **rates).train(), 6000
    many = inputs(4, batch=1).expand(samples, -1, -1)
    torch.manual_seed(3)
    with torch.no_grad():
        ours, theirs = layer(many), published(layer, many)
    error = theirs.std(0) / samples**0.5
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 6 * error + 1e-9).all()
    torch.testing.assert_close(ours.std(0), theirs.std(0), rtol=0.15, atol=1e-9)
    assert (ours.std(0) > 1e-3).all()


DROPOUTS = ("self_attn.dropout", "ffn.dropout", "sublayer.dropout")


@some_variants
@pytest.mark.parametrize("part", DROPOUTS)
def test_rates_are_those_of_the_dropout_modules(part, window, accumulate):
    """Their rates and modes when they are called, not those of the block's."""
    layer, x = block(window, accumulate), inputs(7)
    dropout, expected = layer.get_submodule(part), layer(x)
    dropout.p = 0.5
    torch.testing.assert_close(layer(x), expected)
    dropout.train()  # alone, as in Monte-Carlo dropout
    assert not torch.allclose(layer(x), expected)
    assert not torch.equal(layer(x), layer(x))
    layer.train()
    dropout.eval()
    torch.testing.assert_close(layer(x), expected)
    dropout.train().p = 0.0
    torch.testing.assert_close(layer(x), expected)
    found = []
    for _ in range(2):
        dropout.p = 0.5
        torch.manual_seed(3)
        found.append(layer(x))
    assert torch.equal(*found)


@some_variants
@pytest.mark.parametrize("part", DROPOUTS)
def test_a_rate_of_1_drops_everything_and_keeps_gradients_finite(part, window, accumulate):
    layer, x = block(window, accumulate).train(), inputs(7)
    layer.get_submodule(part).p = 1.0
    found = with_gradients(layer, layer, x)
    assert all(tensor.isfinite().all() for tensor in found)
    if part == "sublayer.dropout" and not accumulate:  # both branches
        assert torch.equal(found[0], x)
    layer.get_submodule(part).register_forward_hook(lambda *_: None)  # step by step
    torch.testing.assert_close(with_gradients(layer, layer, x), found)


def test_what_is_kept_for_the_backward_pass_does_not_grow_with_the_work_of_a_step():
    """The scan itself keeps inputs and states, no activation of the loop."""
    layer = block()
    windows = inputs(200).unflatten(1, (-1, 1)).transpose(0, 1).requires_grad_()
    kept = stacks.kept_for_backward(layer, layer.states, windows)
    per_token = kept / 8 / windows[..., 0].numel() / WIDTH
    # States 1; input 1, its norm 2, its projections 3; the statistics of the norm are the rest.
    assert per_token < 9


def test_compiled_models_run_the_scan_as_it_is():
    layer, x = block(2), inputs(7)
    compiled = torch.compile(layer, backend="eager")
    expected = with_gradients(layer, layer, x)
    torch.testing.assert_close(with_gradients(compiled, layer, x), expected, atol=1e-12, rtol=0)


def test_autocast_computes_products_in_the_lower_type():
    layer = block().float()
    x = inputs(3).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = with_gradients(layer, layer, x)
    for found, expected in zip(low, with_gradients(layer, layer, x)):
        assert found.dtype == torch.float32
        assert 0 < (found - expected).abs().max() < 0.1 * expected.abs().max()


def test_work_can_be_counted_without_memory_for_it():
    layer = block(2, accumulate=True, dropout=0.1).to("meta").train()
    x = inputs(5).to("meta").requires_grad_()
    layer(x).sum().backward()
    assert x.grad.shape == x.shape


# Streaming

SHAPE = Shape(WIDTH, 2 * WIDTH, HEADS)


def two_layers(window: int, accumulate: bool) -> RecurrentStack:
    """A float64 stack of which nothing is at its initial value."""
    torch.manual_seed(0)
    return stacks.randomise(RecurrentStack(SHAPE, 2, F.gelu, window, accumulate).double(), 0)


@every_variant
@torch.no_grad()
def test_a_stream_under_autocast_is_the_whole_text_under_autocast(window, accumulate):
    stack, x = two_layers(window, accumulate).float(), inputs(10).float()
    state = stack.new_state()
    with torch.autocast("cpu", torch.bfloat16):
        streamed = torch.cat([stack(part, None, state) for part in x.split(3, dim=1)], dim=1)
        torch.testing.assert_close(streamed, stack(x), rtol=0.05, atol=0.05)


@every_variant
@torch.no_grad()
def test_a_stream_keeps_one_size_of_state_and_stays_exact(window, accumulate):
    stack, x, sizes = two_layers(window, accumulate), inputs(100), set()
    state, outputs = stack.new_state(), []
    for token in x.split(1, dim=1):
        outputs.append(stack(token, None, state))
        held = [value for layer in state.layers for value in vars(layer).values() if value is not None]
        sizes.add(sum(value.untyped_storage().nbytes() for value in held))
    assert len(sizes) == 1
    torch.testing.assert_close(torch.cat(outputs, dim=1), stack(x), atol=1e-9, rtol=0)


@pytest.mark.parametrize("trains_input", [True, False])
def test_a_state_keeps_no_gradients(trains_input):
    stack = RecurrentStack(SHAPE, 1).double()
    with pytest.raises(RuntimeError, match="no gradients"):
        stack(inputs(1).requires_grad_(trains_input), None, stack.new_state())


# Published results


def published_layers(recorded: dict, activation, window: int, accumulate: bool) -> list[RecurrentBlock]:
    """The two layers of the file."""
    names = {"norms.0": "ln_1", "self_attn.qkv": "attn.c_attn", "self_attn.out": "attn.c_proj"}
    names |= {"norms.1": "ln_2", "ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}
    layers = [RecurrentBlock(Shape(24, 96, 3), activation, window, accumulate).double() for _ in range(2)]
    for number, layer in enumerate(layers):
        theirs = {ours: recorded["state_dict"][f"transformer.h.{number}.{name}.weight"] for ours, name in names.items()}
        layer.load_state_dict({f"{name}.weight": tensor for name, tensor in theirs.items()})
    return layers


WINDOWS = [f"{kind}_mem0_w{window}" for kind in ("relu", "gelu") for window in (1, 2, 3, 5, 6, 7)]
WINDOWS += [f"{kind}_mem1_w{window}" for kind in ("relu", "gelu") for window in (1, 2, 3, 5)]


@pytest.mark.parametrize("name", WINDOWS)
@torch.no_grad()
def test_recorded_windows(name):
    """Accumulating, the last outputs of the code are not those of the formula, with which ours are compared above."""
    recorded = golden("kausik_window")
    assert sorted(recorded["outputs"]) == sorted(WINDOWS)
    kind, accumulate, window = name.split("_")
    accumulate, window = accumulate == "mem1", int(window[1:])
    weights, tokens = recorded["state_dict"], recorded["inputs"]["idx"]
    x = weights["transformer.wte.weight"][tokens] + weights["transformer.wpe.weight"][: tokens.size(1)]
    ours, reference = x, x
    for layer in published_layers(recorded, getattr(F, kind), window, accumulate):
        ours, reference = layer(ours), published(layer, reference, as_published_end=True)
    for found in (reference,) if accumulate else (ours, reference):
        torch.testing.assert_close(found, recorded["outputs"][name]["pre_ln_f"], atol=1e-9, rtol=0)


@torch.no_grad()
def test_the_state_is_not_rounded_away_in_half_precision():
    """An accumulating state that each of 200 steps rounded would put the outputs 2 % off."""
    torch.manual_seed(0)
    stack, x = RecurrentStack(Shape(64, 256, 4), 3, accumulate=True).bfloat16(), torch.randn(2, 200, 64).bfloat16()
    y, exact = stack(x), copy.deepcopy(stack).double()(x.double())
    assert y.dtype == torch.bfloat16
    assert (y - exact).std() < 0.01 * exact.std()
