"""Options of image models: each has an effect; wrong values are rejected by name with the rule."""

from dataclasses import fields
from typing import Any

import pytest
import torch

from tests.support import vision
from tests.support.vision import CASES, timm
from timm_plugin._sret_config import SReTConfig
from timm_plugin._vit_config import ViTConfig
from timm_plugin.elastic import ElasticConfig  # its options are tested in test_elastic.py

# Of every option, a model, another value than the model's, and what has to go with it.
KNOBS: dict[type, dict[str, tuple[str, Any, dict[str, Any]]]] = {
    ViTConfig: {
        "img_size": ("plain_vit", 48, {}),
        "patch_size": ("plain_vit", 16, {}),
        "in_chans": ("plain_vit", 1, {}),
        "num_classes": ("plain_vit", 5, {}),
        "global_pool": ("plain_vit", "avg", {}),
        "embed_dim": ("plain_vit", 16, {}),
        "depth": ("uit", 2, {}),
        "num_heads": ("plain_vit", 4, {}),
        "mlp_ratio": ("plain_vit", 3.0, {}),
        "shared": ("plain_vit", True, {}),
        "loops": ("recursive_deit_tiny", 3, {}),
        "loop_order": ("recursive_deit_tiny", "external", {}),
        "order": ("recursive_deit_tiny", (0, 1, 1, 2), {}),
        "residual_rank": ("plain_vit", 4, {}),
        "terms": ("plain_vit", ("qkv", "out"), dict(residual_rank=4)),
        "level_signal": ("uit", "none", {}),
        "signal_rank_divisor": ("ringformer_vit", 8, {}),
        "shared_mlp": ("plain_vit", True, {}),
        "token_mixing": ("plain_vit", True, dict(num_heads=1, class_token=False, global_pool="avg")),
        "pos_embed": ("plain_vit", "none", {}),
        "class_token": ("plain_vit", False, dict(global_pool="avg")),
        "stem": ("plain_vit", "conv", dict(patch_size=16, img_size=64)),
        "nll": ("recursive_deit_tiny", True, {}),
        "lrc": ("recursive_deit_tiny", True, {}),
        "norm_eps": ("plain_vit", 0.1, {}),
        "init": ("plain_vit", "deit", {}),
        **{
            f"{part}_rate": ("plain_vit", 0.5, {})
            for part in ("drop", "pos_drop", "proj_drop", "mlp_drop", "attn_drop", "drop_path")
        },
    },
    SReTConfig: {
        "img_size": ("sret_t", 128, {}),
        "in_chans": ("sret_t", 1, {}),
        "num_classes": ("sret_t", 5, {}),
        "global_pool": ("sret_t", "max", {}),
        "stem": ("sret_t_global", "patch", {}),
        "class_token": ("sret_t_global", True, {}),
        "embed_dim": ("sret_t", 16, {}),
        "num_heads": ("sret_t", (4, 2, 4), {}),
        "depths": ("sret_t", (1, 1, 1), {}),
        "loops": ("sret_t", 1, dict(groups=((1,),) * 3)),
        "groups": ("sret_t", ((1, 1),) * 3, {}),
        "permuted_runs": ("sret_t", "all", {}),
        "inference_permutation": ("sret_t", "random", {}),
        "permutation_seed": ("sret_t", 1, {}),
        "mlp_ratio": ("sret_t", 3.0, {}),
        "nll_ratio": ("sret_t", 2.0, {}),
        "lrc": ("sret_t", False, {}),
        **{
            f"{part}_rate": ("sret_t_global", 0.5, {})
            for part in ("drop", "pos_drop", "proj_drop", "attn_drop", "drop_path")
        },
        "drop_path_placement": ("sret_t_global", "published", dict(drop_path_rate=0.5)),
    },
}


@pytest.mark.parametrize("config", KNOBS)
def test_every_option_is_turned(config):
    assert set(KNOBS[config]) == {field.name for field in fields(config)} - {
        field.name for field in fields(ElasticConfig)
    }
    for option, (model, value, needed) in KNOBS[config].items():
        assert isinstance(vision.fresh(model, **needed, **{option: value}).config, config)
        assert getattr(vision.fresh(model).config, option) != value


def outcome(model: str, **options: Any) -> tuple[dict, torch.Tensor, torch.Tensor]:
    """Shapes of the parameters, and outputs at inference and in training with given random numbers."""
    instance = vision.small(model, **options).eval()
    x = vision.images(instance, 4)
    outputs = []
    for training in (False, True):
        torch.manual_seed(1234)  # a seed of no fixed permutation
        outputs.append(instance.train(training)(x))
    return {name: tuple(parameter.shape) for name, parameter in instance.named_parameters()}, *outputs


# Drop rates only act in training; test_training.py tests them for every model.
@pytest.mark.parametrize(
    ("config", "option"),
    [(config, option) for config in KNOBS for option in KNOBS[config] if not option.endswith("_rate")],
)
def test_every_option_acts(config, option):
    model, value, needed = KNOBS[config][option]
    shapes, *outputs = outcome(model, **({} if option == "loops" else needed))
    changed_shapes, *changed = outcome(model, **needed, **{option: value})
    assert shapes != changed_shapes or not all(map(torch.allclose, outputs, changed))


VIT_REJECTIONS = [
    *((dict(loop_order="random"), r"loop_order='random': must be one of \('internal', 'external', 'reverse', "),),
    *((dict(level_signal="full"), "level_signal='full': must be one of"),),
    *((dict(pos_embed="rotary"), "pos_embed='rotary': must be one of"),),
    *((dict(stem="linear"), "stem='linear': must be one of"), (dict(init="zero"), "init='zero': must be one of")),
    *((dict(global_pool="map"), "global_pool='map': must be one of"),),
    *(
        ({name: 0}, f"{name}=0: must be >= 1")
        for name in ("patch_size", "in_chans", "embed_dim", "depth", "num_heads", "loops", "signal_rank_divisor")
    ),
    *(
        ({name: value}, rf"{name}={value}: must be a rate within \[0, 1\]")
        for name in KNOBS[ViTConfig]
        if name.endswith("_rate")
        for value in (-0.1, 1.5)
    ),
    (dict(num_classes=-1), "num_classes=-1: must be >= 0"),
    (dict(mlp_ratio=0), "mlp_ratio=0: must be > 0"),
    (dict(mlp_ratio=1e-9), "mlp_ratio=1e-09: gives embed_dim=32 no hidden unit; must be larger"),
    (dict(signal_rank_divisor=3), "signal_rank_divisor=3: needs level_signal='low-rank'"),
    (
        dict(signal_rank_divisor=33, shared=True, level_signal="low-rank"),
        "signal_rank_divisor=33: must be >= 1 and <= embed_dim=32",
    ),
    *(
        ({**options, "loop_order": order}, f"loop_order='{order}': must not be given with shared_mlp, or with shared")
        for order, options in (
            ("reverse", dict(shared=True, loops=2)),
            ("reverse", dict(shared=True, loops=2, nll=True)),
            ("external", dict(shared=True, loops=2)),
            ("external", dict(shared_mlp=True)),
        )
    ),
    (dict(norm_eps=-1e-6), "norm_eps=-1e-06: must be > 0"),
    (dict(num_heads=3), "num_heads=3: must divide embed_dim=32"),
    (dict(img_size=4), "img_size=4: must be >= patch_size=8"),
    (dict(img_size=(32, 4)), r"img_size=\(32, 4\): must be >= patch_size=8"),
    (dict(class_token=False), "global_pool='token': needs class_token=True"),
    (dict(terms=("qkv",)), r"terms=\('qkv',\): needs residual_rank"),
    (dict(terms=(), residual_rank=4), r"terms=\(\): must name some of \('qkv', 'up', 'out', 'down'\)"),
    (dict(terms=("q",), residual_rank=4), r"terms=\('q',\): must name some of \('qkv', "),
    (dict(terms=("cross_q",), residual_rank=4), r"terms=\('cross_q',\): must name some of \('qkv', "),
    (dict(level_signal="learned", pos_embed="learn"), "pos_embed='learn': must not be given with level_signal='learn"),
    (dict(shared_mlp=True, nll=True), "shared_mlp=True: goes with neither shared, nll, token_mixing, lrc"),
    *(
        (dict(shared_mlp=True, level_signal=table), "shared_mlp=True: goes with .* static or learned level_signal")
        for table in ("static", "learned")
    ),
    (dict(token_mixing=True), "token_mixing=True: goes with no class_token"),
    (dict(token_mixing=True, class_token=False, global_pool="avg"), "num_heads=2: token_mixing=True has no heads"),
    (dict(stem="conv"), "patch_size=8: stem='conv' has patches of 16"),
]
SRET_REJECTIONS = [
    *(({name: 0}, f"{name}=0: must be >= 1") for name in ("in_chans", "embed_dim", "loops")),
    *(
        ({name: value}, rf"{name}={value}: must be a rate within \[0, 1\]")
        for name in KNOBS[SReTConfig]
        if name.endswith("_rate")
        for value in (-0.1, 1.5)
    ),
    (dict(num_classes=-1), "num_classes=-1: must be >= 0"),
    (dict(embed_dim=7), "embed_dim=7: must be even"),
    (dict(depths=()), r"depths=\(\): needs at least one"),
    (dict(depths=(1, 0, 1)), r"depths=\(1, 0, 1\): needs at least one, and each must be >= 1"),
    (dict(num_heads=(2, 4)), r"num_heads=\(2, 4\): needs one entry for each of 3 stages"),
    (dict(num_heads=(3, 2, 4)), r"num_heads=\(3, 2, 4\): 3 must divide its stage's width 8"),
    (dict(groups=((1, 1),) * 2), "groups=.*: needs one entry for each of 3 stages"),
    (dict(groups=((1,), (), (1,))), "groups=.*: needs at least one number for each stage"),
    (dict(groups=((0, 1), (1, 1), (1, 1))), r"groups=.*: 0 must divide the 64 tokens \(8 x 8\) of stage 1"),
    (dict(groups=((1, 1), (3, 1), (1, 1))), r"groups=.*: 3 must divide the 16 tokens \(4 x 4\) of stage 2"),
    (dict(mlp_ratio=0), "mlp_ratio=0: must be > 0"),
    (dict(nll_ratio=-1), "nll_ratio=-1: must be >= 0"),
    *(
        ({name: 0.1}, f"{name}=0.1: gives embed_dim=8 no hidden unit; must be larger")
        for name in ("mlp_ratio", "nll_ratio")
    ),
    *(
        ({**options, "groups": ((1, 1),) * 3}, f"{message}: needs slices in groups of a run that permutes")
        for options, message in (
            (dict(permutation_seed=7), "permutation_seed=7"),
            (dict(inference_permutation="random"), "inference_permutation='random'"),
        )
    ),
    (dict(permutation_seed=7, loops=1, groups=((4,),) * 3), "permutation_seed=7: needs slices in groups of a run"),
    (
        dict(permutation_seed=7, inference_permutation="random"),
        "permutation_seed=7: needs inference_permutation='fixed'",
    ),
    (dict(permuted_runs="none", groups=((4, 1),) * 3), "permuted_runs='none': has no effect with groups="),
    (dict(stem="overlap"), r"stem='overlap': must be one of \('conv', 'patch'\)"),
    (dict(stem="patch", img_size=(64, 15)), r"img_size=\(64, 15\): must be >= 16, the side of a patch"),
    (dict(class_token=True), r"groups=.*: class_token=True needs 1 everywhere, as it is of no slice"),
    (dict(drop_path_placement="published"), "drop_path_placement='published': needs drop_path_rate > 0"),
    (dict(drop_path_placement="last"), r"drop_path_placement='last': must be one of \('depth', 'published'\)"),
    (dict(inference_permutation="none"), r"inference_permutation='none': must be one of \('fixed', 'random'\)"),
    (dict(global_pool="token"), "global_pool='token': must be one of"),
    (dict(global_pool=""), "global_pool='': needs num_classes=0, or a class token"),
]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [("plain_vit", *case) for case in VIT_REJECTIONS] + [("sret_t", *case) for case in SRET_REJECTIONS],
)
def test_wrong_values_are_rejected(model, options, message):
    with pytest.raises(ValueError, match=message):
        vision.fresh(model, **options)


def test_one_block_may_be_followed_by_a_projection_after_each_run():
    model = vision.fresh("uit", loops=2, nll=True, loop_order="external")
    assert sum(own.projection is not None for own in model.loop.own) == 2


@pytest.mark.parametrize("case", CASES)
def test_images_of_another_size_are_rejected(case):
    model = vision.fresh(case).eval()
    height, width = model.patch_embed.img_size
    for size in ((height + 16, width), (height, width + 16)):
        with pytest.raises(AssertionError, match=f"{height}|{width}"):
            model(torch.randn(1, 3, *size))


def test_a_patch_size_is_not_sret_s():
    with pytest.raises(ValueError, match="patch_size=16: a stem's convolutions have one size"):
        vision.fresh("sret_t").set_input_size(64, patch_size=16)
    model = vision.fresh("deit, SReT's stem")
    with pytest.raises(ValueError, match="patch_size=8: stem='conv' has patches of 16"):
        model.set_input_size(64, patch_size=8)
    model.set_input_size(64, patch_size=16)
    assert timm.models.get_model_traits(model)["img_size"] == (64, 64)


def test_another_head_obeys_the_rules_for_pooling():
    with pytest.raises(ValueError, match="global_pool='token': must be one of"):
        vision.fresh("recursive_mixer_s16").reset_classifier(0, "token")
    with pytest.raises(ValueError, match="num_classes=-1: must be >= 0"):
        vision.fresh("uit").reset_classifier(-1)
    model = vision.fresh("sret_t").eval()
    with pytest.raises(ValueError, match="global_pool='': needs num_classes=0, or a class token"):
        model.reset_classifier(3, "")
    assert model(vision.images(model)).shape == (2, vision.CLASSES)


@pytest.mark.parametrize("name", ["uit", "sret_t"])
def test_a_removed_option_is_rejected_unless_it_is_off(name):
    with pytest.raises(ValueError, match=r"^exit_threshold=0.1: was removed, .*; run fewer passes instead$"):
        vision.fresh(name, exit_threshold=0.1)
    vision.fresh(name, exit_threshold=0.0)
