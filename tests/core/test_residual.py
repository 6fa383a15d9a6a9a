"""How branches join the stream: coefficients, dropped paths, the non-linear projection."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.admin import Admin, attach, folded, profile, read, write
from recurrence.block import DropPath, Shape, Sum, set_drop_path
from recurrence.loop import Loop
from recurrence.papers.sret import Coefficients, Recursion, sret
from recurrence.papers.takase import shared_layers

WIDTH = 6


def tokens(seed: int, batch: int = 4) -> Tensor:
    return torch.randn(batch, 5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_drop_path_drops_entire_samples_and_scales_the_others():
    x = tokens(1, batch=2000).abs() + 1
    torch.manual_seed(0)
    ratio = DropPath(0.25).train()(x) / x
    torch.testing.assert_close(ratio.amin((1, 2)), ratio.amax((1, 2)))
    kept = ratio[:, 0, 0] > 0
    torch.testing.assert_close(ratio[kept], torch.full_like(ratio[kept], 1 / 0.75))
    assert kept.double().mean().item() == pytest.approx(0.75, abs=0.03)
    assert torch.equal(DropPath(0.25).eval()(x), x)
    assert torch.equal(DropPath(0.0)(x), x)
    assert not DropPath(1.0)(x).any()


# In a stack


def stack(order=(0, 0, 1, 1), drop_path=(), coefficients=False, **recursion) -> Loop:
    torch.manual_seed(0)
    around = Recursion(coefficients, **recursion)
    loop = sret(Shape(WIDTH, 7, 2), order, around, pre_norm=True, activation=F.gelu).double()
    set_drop_path(loop.own[: len(drop_path)], drop_path)
    for parameter in loop.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return loop


def test_projections_after_every_other_pass():
    loop = stack(order=(0, 1, 0, 1), projection_width=5, projection_every=2)
    assert [own.projection is not None for own in loop.own] == [False, True, False, True]
    states: list = []
    loop(tokens(1), states=states)
    torch.testing.assert_close(states[0], loop.blocks[0](tokens(1), loop.own[0]))
    torch.testing.assert_close(states[1], loop.own[1].projection(loop.blocks[1](states[0], loop.own[0])))


def test_each_pass_has_the_rate_of_its_depth():
    """Rate 1 drops both branches of a pass and leaves the stream, other passes as they are."""
    x = tokens(1)
    states, dropped = [], []
    expected = stack()(x, states=states)
    stack(drop_path=(0.0, 1.0, 0.0, 0.0)).train()(x, states=dropped)
    torch.testing.assert_close(dropped[0], states[0])
    assert torch.equal(dropped[1], dropped[0])
    assert not torch.allclose(dropped[2], dropped[1])
    torch.testing.assert_close(stack(drop_path=(0.0, 1.0, 0.0, 0.0)).eval()(x), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(drop_path=(0.1, 0.2, 0.3, 1.2)), r"drop_path=.*: must be a rate within \[0, 1\]"),
        (dict(projection_width=0), "projection_width=0: must be >= 1"),
        (dict(projection_every=3), "projection_every=3: must divide the 4 passes"),
        (dict(projection_every=0), "projection_every=0: must divide the 4 passes"),
    ],
)
def test_wrong_arguments_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        stack(**changes)


def test_admin_adds_a_scaled_stream_whose_scale_is_weight_and_offset():
    x, y, layer = tokens(1), tokens(2), Admin(WIDTH).double()
    assert torch.equal(layer(x, y), x + y)
    layer.offset.fill_(0.5)
    weight = torch.arange(WIDTH, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight)
    torch.testing.assert_close(layer(x, y), (weight + 0.5) * x + y)
    layer(x, y).sum().backward()
    torch.testing.assert_close(layer.weight.grad, x.sum((0, 1)))
    assert torch.equal(folded(layer)["weight"], layer.omega)
    assert layer.state_dict().keys() == {"weight", "offset"}


def test_a_profile_is_undone_by_nothing_that_fails():
    """The hooks of a run that breaks off are gone, and the next one sets every omega anew."""
    loop = shared_layers(Shape(WIDTH, 8, 2), (0, 0))
    attach(loop, WIDTH)

    def fail():
        loop(tokens(1).float())
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        profile([loop], fail)
    before = read([loop])
    loop(tokens(2).float())
    assert torch.equal(read([loop]), before)
    profile([loop], lambda: loop(tokens(2).float()))
    assert read([loop])[0] == 1
    assert read([loop])[1:].ne(before[1:]).all()
    write([loop], before)
    torch.testing.assert_close(read([loop]), before)


def test_admin_rejects_residual_coefficients():
    with pytest.raises(ValueError, match="^admin: does not go with residual sums that have coefficients"):
        attach(sret(Shape(WIDTH, 8, 2), (0,), Recursion()), WIDTH)


def test_coefficients_and_their_gradients_are_those_of_the_plain_form():
    x, y, layer = tokens(1).float().requires_grad_(), tokens(2).float().requires_grad_(), Coefficients()
    assert torch.equal(layer(x, y), Sum()(x, y))
    with torch.no_grad():
        layer.identity.fill_(0.7)
        layer.branch.fill_(-1.3)
    leaves = [x, y, layer.identity, layer.branch]
    ours, plain = layer(x, y), torch.addcmul(layer.branch * y, x, layer.identity)
    torch.testing.assert_close(ours, 0.7 * x - 1.3 * y)
    assert type(ours.grad_fn).__name__ == "_WeightedBackward"
    assert torch.equal(ours, plain)
    upstream = torch.linspace(-1, 1, ours.numel()).view_as(ours)
    firsts = [torch.autograd.grad(z, leaves, upstream * z, create_graph=True) for z in (ours, plain)]
    torch.testing.assert_close(*firsts, rtol=1e-5, atol=1e-5)
    seconds = [torch.autograd.grad(sum(grad.square().sum() for grad in first), leaves) for first in firsts]
    torch.testing.assert_close(*seconds, rtol=1e-4, atol=1e-4)


def test_spreads_beyond_the_largest_half_are_measured():
    sums = nn.ModuleList(Admin(WIDTH) for _ in range(2)).half()
    x, y = (300 * tokens(seed) for seed in (1, 2))
    profile([sums], lambda: [layer(x.half(), y.half()) for layer in sums])
    spread = (x.var(correction=0) + y.var(correction=0)).sqrt().item()
    assert read([sums]).tolist() == pytest.approx([1, spread], rel=1e-3)
