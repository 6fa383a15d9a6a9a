"""How branches join the stream: coefficients, dropped paths, the non-linear projection."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from recurrence.block import Shape
from recurrence.loop import Loop
from recurrence.papers.admin import Admin, attach, folded, profile, read, write
from recurrence.papers.baselines import vanilla
from recurrence.papers.ringformer import Signals, ringformer
from recurrence.papers.sret import Coefficients, MixerBlock, NonlinearProjection, Recursion, sret
from recurrence.papers.takase import shared_layers
from recurrence.parts import FeedForward, Sublayer, Sum
from tests.support import stacks

WIDTH = 6


def tokens(seed: int, batch: int = 4) -> Tensor:
    return torch.randn(batch, 5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# In a stack


def stack(order=(0, 0, 1, 1), drop_path=(), coefficients=False, **recursion) -> Loop:
    torch.manual_seed(0)
    around = Recursion(coefficients, **recursion)
    loop = sret(Shape(WIDTH, 7, 2), order, around, pre_norm=True, activation=F.gelu).double()
    for own, rate in zip(loop.own, drop_path):
        own.drop_path = DropPath(rate)
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


@pytest.mark.parametrize(("rate", "left"), [("dropout", 0.0), ("activation_dropout", 1.0)])
def test_projections_have_dropout(rate, left):
    """At a rate of 1, nothing is left of the branch, or only the bias of its last layer."""
    x, projection = tokens(1), NonlinearProjection(Shape(WIDTH, 7, 2, **{rate: 1.0}), 5, learned=False).double()
    torch.testing.assert_close(projection.train()(x), x + left * projection.down.bias)
    assert not torch.allclose(projection.eval()(x), x + left * projection.down.bias)


def test_a_pass_drops_its_branches_alone():
    """Rate 1 drops both branches of a pass and leaves the stream, other passes as they are."""
    x = tokens(1)
    states, dropped = [], []
    expected = stack()(x, states=states)
    stack(drop_path=(0.0, 1.0, 0.0, 0.0)).train()(x, states=dropped)
    torch.testing.assert_close(dropped[0], states[0])
    assert torch.equal(dropped[1], dropped[0])
    assert not torch.allclose(dropped[2], dropped[1])
    torch.testing.assert_close(stack(drop_path=(0.0, 1.0, 0.0, 0.0)).eval()(x), expected)


SHAPE = Shape(WIDTH, 7, 2)
MIXER = dict(block=MixerBlock, tokens=5, mixing_width=4, ffn_dropout=0.0)
LOOPS = {
    "ringformer": lambda shape=SHAPE, **parts: ringformer(shape, (0, 0), Signals(2), **parts),
    "ringformer of images": lambda shape=SHAPE, **parts: ringformer(shape, (0, 0), Signals(2), pre_norm=True, **parts),
    "takase": lambda shape=SHAPE, **parts: shared_layers(shape, (0, 0), **parts),
    "vanilla": lambda shape=SHAPE, **parts: vanilla(shape, 2, **parts),
    "sret": lambda shape=SHAPE, **parts: sret(shape, (0, 0), Recursion(), pre_norm=True, **parts),
    "mixer": lambda: sret(SHAPE, (0, 0), Recursion(), **MIXER),
}


@pytest.mark.parametrize("make", LOOPS.values(), ids=list(LOOPS))
def test_any_module_may_drop_the_branches_of_any_block(make):
    """Every branch of the pass goes through it, after dropout and before the sum."""
    torch.manual_seed(0)
    loop, x, seen = make().double(), tokens(1), []
    expected = loop(x)
    loop.own[1].drop_path = nn.Identity()
    loop.own[1].drop_path.register_forward_hook(lambda _, inputs, y: seen.append(y))
    assert torch.equal(loop(x), expected)
    assert len(seen) == 2
    loop.own[1].drop_path.register_forward_hook(lambda _, inputs, y: y * 0)
    states: list[Tensor] = []
    loop(x, states=states)
    block, kept = loop.blocks[loop.order[1]], states[0]
    norms = [] if block.pre_norm else list(getattr(block, "norms", None) or loop.own[1].norms)
    for norm in norms * (2 // max(len(norms), 1)):  # one may serve both sublayers
        kept = norm(kept)
    torch.testing.assert_close(states[1], kept)


def test_an_ffn_drops_hidden_units_after_their_activation():
    ffn = FeedForward(WIDTH, 7, torch.cos, True, 1.0).double().train()  # cos(0) is 1
    assert torch.equal(ffn(tokens(1)), ffn.down.bias.expand(4, 5, WIDTH))


ATTENTIONS = ("self_attn", "cross_attn")


# Rates of 1, the parts in which they act, and what they leave of a part's output.
@pytest.mark.parametrize(
    ("rates", "parts", "left"),
    [
        (dict(dropout=1.0), (*ATTENTIONS, "ffn"), lambda part, y: y * 0),
        (dict(dropout=1.0, ffn_dropout=0.0), ATTENTIONS, lambda part, y: y * 0),
        (dict(ffn_dropout=1.0), ("ffn",), lambda part, y: y * 0),
        (dict(attention_dropout=1.0), ATTENTIONS, lambda part, y: part.out.bias.expand_as(y)),
        (dict(activation_dropout=1.0), ("ffn",), lambda part, y: part.down.bias.expand_as(y)),
    ],
)
@pytest.mark.parametrize("name", [name for name in LOOPS if name != "mixer"])
def test_each_rate_of_a_decoder_acts_in_its_parts_and_no_others(name, rates, parts, left):
    of_shape = {rate: value for rate, value in rates.items() if rate != "ffn_dropout"}
    loop = LOOPS[name](replace(SHAPE, **of_shape), memory_width=3, ffn_dropout=rates.get("ffn_dropout")).double()
    plain = LOOPS[name](memory_width=3).double()
    plain.load_state_dict(stacks.randomise(loop, 0).state_dict())
    for block in plain.blocks:
        for part in parts:
            getattr(block, part).register_forward_hook(lambda part, inputs, y: left(part, y))
    cross = dict(context=torch.randn(4, 2, 2 * WIDTH, dtype=torch.float64))
    found, expected = loop.train()(tokens(1), cross=cross), plain(tokens(1), cross=cross)
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, loop.eval()(tokens(1), cross=cross))


@pytest.mark.parametrize("pre_norm", [False, True])
def test_a_sublayer_is_the_sum_of_the_stream_and_what_is_left_of_the_branch(pre_norm):
    """norm(x + f(x)) or x + f(norm(x)), here with x - (-f)."""
    sublayer, norm, x = Sublayer(0.5, pre_norm).double(), nn.LayerNorm(WIDTH).double(), tokens(1)
    plain = x + norm(x).exp() if pre_norm else norm(x + x.exp())
    torch.testing.assert_close(sublayer.eval()(x, torch.exp, norm, torch.sub, torch.neg), plain)
    left = (sublayer.train()(x, torch.exp, nn.Identity(), torch.add) - x) / x.exp()
    assert sorted(left.round(decimals=9).unique().tolist()) == [0, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
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
    with pytest.raises(ValueError, match="^admin: conflicts with residual sums that have coefficients"):
        attach(sret(Shape(WIDTH, 8, 2), (0,), Recursion()), WIDTH)


def test_coefficients_scale_the_stream_and_the_branch():
    x, y, layer = tokens(1), tokens(2), Coefficients().double()
    assert torch.equal(layer(x, y), Sum()(x, y))
    with torch.no_grad():
        layer.identity.fill_(0.7)
        layer.branch.fill_(-1.3)
    found, upstream = layer(x, y), tokens(3)
    torch.testing.assert_close(found, 0.7 * x - 1.3 * y)
    assert layer.factors() == pytest.approx((0.7, -1.3))
    of_stream, of_branch = torch.autograd.grad((found * upstream).sum(), [layer.identity, layer.branch])
    torch.testing.assert_close(of_stream, (upstream * x).sum()[None])
    torch.testing.assert_close(of_branch, (upstream * y).sum()[None])


def test_spreads_beyond_the_largest_half_are_measured():
    sums = nn.ModuleList(Admin(WIDTH) for _ in range(2)).half()
    x, y = (300 * tokens(seed) for seed in (1, 2))
    profile([sums], lambda: [layer(x.half(), y.half()) for layer in sums])
    spread = (x.var(correction=0) + y.var(correction=0)).sqrt().item()
    assert read([sums]).tolist() == pytest.approx([1, spread], rel=1e-3)
