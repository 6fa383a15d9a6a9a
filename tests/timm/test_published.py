"""Published image models: weights and released files; and every model against references from the equations."""

import re

import pytest
import torch
from torch import Tensor, nn

from tests.support import reference_vision, vision
from tests.support.golden import golden
from tests.support.recorded import IMAGES, load
from tests.support.vision import is_pyramid, timm
from timm_plugin.published import from_published, to_published


@pytest.mark.parametrize("recorded", IMAGES)
@pytest.mark.parametrize("nesting", ["model", "model_state_dict"])
def test_nested_and_prefixed_weights(recorded, nesting):
    file = golden(recorded)
    nested = {nesting: {f"_orig_mod.{key}": tensor for key, tensor in file["state_dict"].items()}, "epoch": 3}
    expected = load(recorded, file)(file["inputs"]["image"])
    assert torch.equal(load(recorded, {**file, "state_dict": nested})(file["inputs"]["image"]), expected)


def test_a_file_without_weights_is_rejected():
    for nothing in ({}, {"epoch": 3}):
        with pytest.raises(ValueError, match="state_dict: has 0 tensors, none of floating-point numbers: must hold"):
            from_published("vit", nothing, golden("ringformer_vision_vit")["meta"]["config"])


@pytest.mark.parametrize("order", [(0, 1, 1), [0, 1, 1]])
def test_an_order_of_its_own_has_no_published_form(order):
    with pytest.raises(ValueError, match=r"^order=\(0, 1, 1\): the published code has no such order"):
        to_published("vit", vision.small("plain_vit", order=order, depth=2))


@pytest.mark.parametrize(
    ("system", "name", "options", "rule"),
    [
        ("vit", "recursive_deit_tiny", {}, "RecursiveDeiT: the published code of vit is a PlainViT"),
        ("vit", "ringformer_vit", {}, "RingFormerViT: the published code of vit is a PlainViT"),
        ("sret", "sret_t", dict(nll_ratio=0.0), r"stages.0\S+: the published code of sret needs it"),
        ("sret", "sret_t_global", dict(stem="patch"), "patch_embed.proj.weight: the published code of sret has"),
        ("sret", "sret_t_global", dict(class_token=True), "cls_token: the published code of sret has no such"),
        ("vit", "plain_vit", dict(global_pool="avg"), "global_pool='avg': must be 'token', as in the published code"),
        ("uit", "uit", dict(norm_eps=1e-3), "norm_eps=0.001: must be 1e-06"),
        ("sret", "sret_t", dict(permuted_runs="none"), "permuted_runs='none': must be 'later'"),
        ("deit", "sret_t", {}, "system='deit': must be one of"),
    ],
)
def test_other_models_have_no_published_form(system, name, options, rule):
    with pytest.raises(ValueError, match=f"^{rule}"):
        to_published(system, vision.small(name, **options))


def test_weights_of_another_size_are_rejected_by_name():
    file = golden("ringformer_vision_vit")
    config = {**file["meta"]["config"], "mlp": file["meta"]["config"]["mlp"] * 2}
    with pytest.raises(ValueError, match=r"fc1.weight: has shape \(\d+, \d+\): must be \(\d+, \d+\), as loop.blocks"):
        from_published("vit", file["state_dict"], config)


@pytest.mark.parametrize("recorded", ["ringformer_vision_uit_static", "ringformer_vision_vit"])
def test_either_name_gives_the_depth(recorded):
    file = golden(recorded)
    config, expected = file["meta"]["config"], load(recorded, file)
    rest = {name: value for name, value in config.items() if name not in ("num_levels", "num_layers")}
    depth = config["num_levels"] or config["num_layers"]
    for given in (dict(num_levels=depth), dict(num_layers=depth), dict(num_levels=None, num_layers=depth)):
        found = from_published(IMAGES[recorded], file["state_dict"], {**rest, **given})
        assert found.config == expected.config
        assert found.config.depth == depth
    with pytest.raises(ValueError, match="num_levels=None, num_layers=None: one must be given and >= 1"):
        from_published(IMAGES[recorded], file["state_dict"], rest)


def test_published_blocks_of_three_runs_need_no_slices():
    """As the published code numbers runs, the fourth of a stage would be a second run, with its permutation."""
    config = {**golden("sret_unsliced")["meta"]["config"], "image_size": 64, "depth": [6, 3, 3]}
    sizes = dict(img_size=64, embed_dim=8, num_heads=(2, 4, 8), depths=(2, 1, 1), num_classes=9, loops=3)
    ratios = dict(mlp_ratio=config["mlp_ratio"], nll_ratio=config["np_mlp_ratio"])
    model = timm.create_model("sret_t", **sizes, **ratios, groups=((1, 1, 1),) * 3).eval()
    weights = to_published("sret", model)
    assert len([key for key in weights if re.fullmatch(r"transformers\.0\..*attn\.qkv\.weight", key)]) == 6
    x = vision.images(model)
    assert torch.equal(from_published("sret", weights, config)(x), model(x))
    with pytest.raises(ValueError, match="groups1, groups2: 3 runs of a block"):
        from_published("sret", weights, {**config, "groups1": [8, 4, 1], "groups2": [2, 1, 1]})
    with pytest.raises(ValueError, match=r"depth=\[6, 3, 4\], recursive_num=\[2, 1, 1\]: every block must run equally"):
        from_published("sret", weights, {**config, "depth": [6, 3, 4]})


# Released files


@pytest.mark.parametrize("name", ["sret_t", "sret_tl", "sret_s", "sret_t_global", "sret_tl_global", "sret_s_global"])
def test_released_files_load_as_they_are(name, tmp_path):
    """At full width: nested under `model`, beside what training saved, shared blocks at each of their places."""
    torch.manual_seed(0)
    model = timm.create_model(name, img_size=64).eval()
    released = to_published("sret", model)
    assert len(released) > len(model.state_dict())
    assert (
        released["transformers.0.blocks.0.attn.qkv.weight"] is not released["transformers.0.blocks.4.attn.qkv.weight"]
    )
    torch.save({"model": released, "epoch": 299, "optimizer": {"state": {}}}, tmp_path / "released.pth")
    loaded = timm.create_model(name, img_size=64, checkpoint_path=str(tmp_path / "released.pth")).eval()
    x = vision.images(model)
    assert torch.equal(loaded(x), model(x))
    larger = timm.create_model(name, img_size=128, checkpoint_path=str(tmp_path / "released.pth")).eval()
    assert larger(vision.images(larger)).shape == (2, 1000)
    overlay = {"file": str(tmp_path / "released.pth"), "num_classes": 1000}
    tuned = timm.create_model(name, img_size=64, num_classes=5, pretrained=True, pretrained_cfg_overlay=overlay).eval()
    assert torch.equal(tuned.forward_features(x), model.forward_features(x))
    assert tuned(x).shape == (2, 5)


def test_released_files_with_differing_copies_are_rejected(tmp_path):
    model = vision.small("sret_t")
    released = to_published("sret", model)
    key = "transformers.1.blocks.2.mlp.fc1.bias"
    released[key] = released[key] + 1
    torch.save({"model": released}, tmp_path / "released.pth")
    with pytest.raises(ValueError, match=f"{key}: differs from the tensor that it shares"):
        vision.fresh("sret_t", checkpoint_path=str(tmp_path / "released.pth"))


# References


def slices_of(stage: nn.Module) -> list[list]:
    """Which tokens attend to each other, of every pass of a stage."""
    tokens, found = torch.arange(stage.grid[0] * stage.grid[1]), []
    for slices in (own.slices for own in stage.loop.own):
        order = tokens if slices is None or slices.permutation is None else slices.permutation
        found.append([slice(None)] if slices is None else list(order.chunk(slices.groups)))
    return found


# RingFormer and its baselines are compared with the published code alone. Beside them, the references leave out other
# poolings and tables than the family's own.
PUBLISHED_ALONE = ("ringformer", "uit", "owf", "plain")
OTHERS = {"sret, neither NLL nor LRC", "sret, maximum", "sret, class token"}
REFERENCED = [case for case in vision.STRUCTURES if not case.startswith(PUBLISHED_ALONE) and case not in OTHERS]


def by_reference(case: str, model: nn.Module, image: Tensor) -> Tensor:
    """Logits of one image."""
    name, config = vision.CASES[case][0], model.config
    if is_pyramid(name):
        orders, slices = [loop.order for loop in model.loops()], [slices_of(stage) for stage in model.stages]
        return reference_vision.sret(model.state_dict(), image, config.num_heads, orders, slices)
    if "mixer" in name:
        return reference_vision.recursive_mixer(model.state_dict(), image, config.passes())
    return reference_vision.recursive_deit(model.state_dict(), image, config.num_heads, config.passes())


@pytest.mark.parametrize("case", REFERENCED)
def test_references(case):
    model, x = vision.small_with_images(case)
    expected = torch.stack([by_reference(case, model, image) for image in x])
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-9)
    assert (expected[0] - expected[1]).abs().max() > 1e-4
