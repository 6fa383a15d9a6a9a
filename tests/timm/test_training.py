"""Training: initial values, batches, dropped paths, groups of parameters, mixed precision."""

import math

import pytest
import torch
from timm.layers import calculate_drop_path_rates
from timm.optim import create_optimizer_v2, param_groups_layer_decay
from torch import nn

from recurrence.loop import Loop
from tests.support import vision
from tests.support.vision import every_case, every_registered_structure, is_pyramid, timm
from timm_plugin._layers import DropPath


@every_case
def test_an_image_knows_nothing_of_its_batch(case):
    model = vision.small(case)
    x = vision.images(model, 3)
    together = model(x)
    torch.testing.assert_close(torch.cat([model(one[None]) for one in x]), together, rtol=1e-9, atol=1e-12)
    assert (together[0] - together[1]).abs().max() > 1e-4
    assert model(x[:0]).shape == (0, vision.CLASSES)


@every_registered_structure
def test_each_rate_acts_in_training_alone(structure):
    unpermuted = dict(groups=((8, 1), (4, 1), (1, 1))) if is_pyramid(structure) else {}
    options = {**unpermuted, "mixed_depth": False}
    plain = vision.small(structure, **options)
    x = vision.images(plain, 4)
    for rate in vision.rates_of(structure):
        dropping = vision.small(structure, **options, **{rate: 0.5})
        assert torch.equal(dropping(x), plain(x)), rate
        if not is_pyramid(structure):  # which has batch norm
            assert torch.equal(plain.train()(x), plain.eval()(x))
        outputs = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            outputs.append(dropping.train()(x))
        assert not torch.allclose(*outputs), rate


@every_registered_structure
def test_drop_path_rises_with_the_depth_where_it_sits(structure):
    model = vision.fresh(structure, drop_path_rate=0.2)
    passes = [[own.drop_path.drop_prob for own in loop.own] for loop in model.loops()]
    if is_pyramid(structure):
        total = sum(map(len, passes))
        assert sum(passes, []) == pytest.approx([0.2 * entry / total for entry in range(total)])
    else:
        runs = model.passes_per_depth  # of One Wide FFN, an attention and the MLP are one depth
        assert passes[0][::runs] == pytest.approx(calculate_drop_path_rates(0.2, len(passes[0]) // runs))
        assert passes[0][runs - 1 :: runs] == passes[0][::runs]
    assert not [module for module in vision.fresh(structure).modules() if isinstance(module, DropPath)]


def test_published_placement_of_drop_path():
    """One rate a block, and those of 20 depths, as in the released code."""
    model = timm.create_model("sret_t", device="meta", drop_path_rate=0.1, drop_path_placement="published")
    rates = [[own.drop_path.drop_prob for own in loop.own] for loop in model.loops()]
    expected = [[0, 0.005], [0.02, 0.025, 0.03, 0.035, 0.04], [0.07, 0.075, 0.08]]
    for got, block in zip(rates, expected):
        assert got[::2] == got[1::2] == pytest.approx(block)


def test_drop_path_is_timms_and_its_rate_may_change():
    layer, x = DropPath(0.25).train(), torch.ones(4000, 3, 2)
    assert isinstance(layer, timm.layers.DropPath)
    assert not layer.state_dict()
    assert sorted(map(sum, layer(x).flatten(1).unique(dim=0).tolist())) == pytest.approx([0, 8])  # whole samples
    assert layer(x).mean().item() == pytest.approx(1, abs=0.05)
    for rate, expected in ((0.0, x), (1.0, 0 * x)):
        layer.drop_prob = rate
        assert torch.equal(layer(x), expected)
    layer.drop_prob, layer.scale_by_keep = 0.25, False
    assert layer(x).unique().tolist() == [0, 1]
    assert torch.equal(layer.eval()(x), x)


def depth(loops: dict[str, Loop], name: str) -> float:
    """Where a parameter comes in, counted in passes: at the embedding, at the middle pass of its uses, at the head."""
    start = 1
    for prefix, loop in loops.items():
        if name.startswith(f"{prefix}."):
            kind, index = name.removeprefix(f"{prefix}.").split(".")[:2]
            runs = [run for run, which in enumerate(loop.order) if which == int(index)]
            return start + (runs[len(runs) // 2] if kind == "blocks" else int(index))
        if name.startswith(f"{prefix.rpartition('.')[0]}.pool."):
            return start
        start += loop.passes
    return math.inf if name.startswith("head.") else -math.inf if name.startswith("norm.") else 0


@every_case
def test_layer_decay_takes_a_block_at_the_middle_of_its_passes(case):
    """The stem first, the head last, the final norm with the last pass, as in timm's models."""
    model = vision.fresh(case)
    groups = param_groups_layer_decay(model, weight_decay=0, layer_decay=0.5)
    scales = {parameter: group["lr_scale"] for group in groups for parameter in group["params"]}
    assert len(scales) == len(list(model.parameters()))
    loops = {name: module for name, module in model.named_modules() if isinstance(module, Loop)}
    depths = {name: depth(loops, name) for name, _ in model.named_parameters()}
    levels = sorted(set(depths.values()) - {-math.inf})  # a pass without parameters of its own is no group
    for name, parameter in model.named_parameters():
        level = len(levels) - 2 if name.startswith("norm.") else levels.index(depths[name])
        assert scales[parameter] == 0.5 ** (len(levels) - 1 - level), name


@every_case
def test_weight_decay_is_for_matrices_of_layers(case):
    model = vision.fresh(case)
    optimiser = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    names = {parameter: name for name, parameter in model.named_parameters()}
    decayed = {names[p] for group in optimiser.param_groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {name for name, p in model.named_parameters() if name.endswith(".weight") and p.dim() > 1}
    assert sum(len(group["params"]) for group in optimiser.param_groups) == len(names)


# Initial values


def started(name: str) -> nn.Module:
    return vision.fresh(name, embed_dim=64, mlp_ratio=4, num_classes=50)


def test_deits_is_truncated_normal():
    model = started("recursive_deit_tiny")
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert all(layer.weight.std().item() == pytest.approx(0.02, rel=0.1) and not layer.bias.any() for layer in layers)
    assert model.cls_token.std().item() == pytest.approx(0.02, rel=0.5)


def test_ringformers_is_xaviers_in_the_mlp():
    model = started("plain_vit")
    for block in model.loop.blocks:
        for layer in (block.ffn.up, block.ffn.down):
            assert layer.weight.abs().max().item() == pytest.approx((6 / (5 * 64)) ** 0.5, rel=0.05)
            assert layer.bias.std().item() == pytest.approx(1e-6, rel=0.5)
        assert block.self_attn.qkv.weight.abs().max().item() == pytest.approx(64**-0.5, rel=0.05)
    assert not model.cls_token.any()


PLACES = ("sublayer", "ffn", "ffn_sublayer")


@pytest.mark.parametrize("name", ["plain_vit", "uit", "ringformer_vit", "recursive_deit_tiny", "recursive_mixer_s16"])
def test_each_rate_is_that_of_its_places(name):
    block = vision.fresh(name, proj_drop_rate=0.1, mlp_drop_rate=0.2).loop.blocks[0]
    assert [getattr(block, place).dropout.p for place in PLACES] == [0.1, 0.2, 0.2]


def test_the_rate_of_srets_projections_is_that_of_all_branches():
    loop = vision.fresh("sret_t", proj_drop_rate=0.1).stages[0].loop
    assert [getattr(loop.blocks[0], place).dropout.p for place in PLACES] == [0.1, 0.1, 0.1]
    projection = loop.own[0].projection
    assert (projection.activation_dropout.p, projection.dropout.p) == (0.1, 0.1)
