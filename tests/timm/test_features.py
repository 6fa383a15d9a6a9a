"""What timm asks of a model beside its logits: features of every depth, pooled features, another classifier."""

import re

import pytest
import torch
from timm.models import save_for_hf

from tests.support import vision
from tests.support.vision import every_case, every_model, every_registered_structure, is_pyramid, timm


@every_model
def test_reductions_and_channels_are_the_measured_ones(name):
    """At full size; the declared numbers are read by detectors and decoders."""
    with torch.device("meta"):
        model = timm.create_model(name, features_only=True, img_size=224)
        x = torch.empty(1, 3, 224, 224)
    maps = model(x)
    assert len(maps) == len(model.feature_info.channels()) == (2 if name == "sret_nano" else 3)
    assert [tensor.shape[1] for tensor in maps] == model.feature_info.channels()
    for tensor, reduction in zip(maps, model.feature_info.reduction()):
        assert [side / reduction for side in x.shape[2:]] == list(tensor.shape[2:])
    assert model.feature_info.reduction() == ([8, 16, 32][: len(maps)] if is_pyramid(name) else [16, 16, 16])


@every_case
def test_features_only_gives_the_whole_models_features(case):
    model = vision.fresh(case).eval()
    x = vision.images(model)
    expected = model.forward_intermediates(x, intermediates_only=True)
    count = len(model.feature_info)
    for chosen, stored in (([0], [0]), ([-1, -2], [count - 2, count - 1]), (list(range(count)), list(range(count)))):
        getter = vision.fresh(case, features_only=True, out_indices=chosen).eval()
        torch.testing.assert_close(getter(x), [expected[index] for index in stored], rtol=0, atol=0)
        assert getter.feature_info.channels() == [model.feature_info[index]["num_chs"] for index in stored]
        assert not [key for key in getter.state_dict() if key.startswith(("model.head.", "model.norm."))]
    default = vision.fresh(case, features_only=True)
    assert default.feature_info.channels() == [info["num_chs"] for info in model.feature_info][-3:]


@every_case
def test_pruned_features_load_the_whole_models_weights(case):
    """As in timm's own models; `strict=False` also leaves out the parts that were pruned."""
    model, x = vision.small_with_images(case)
    whole = model.state_dict(prefix="model.")
    expected = model.forward_intermediates(x, intermediates_only=True)
    for index in range(len(expected)):
        for state_dict in (whole, dict(whole)):  # safetensors drop what a state dict says of itself
            getter = vision.small(case, seed=1, features_only=True, out_indices=[index])
            assert not getter.load_state_dict(state_dict, strict=False).missing_keys
            assert torch.equal(getter(x)[0], expected[index])


@every_registered_structure
def test_a_hook_or_a_graph_finds_every_depth_by_its_name(structure):
    model, x = vision.small_with_images(structure)
    names = [info["module"] for info in model.feature_info]
    assert len(set(names)) == len(names)
    output_fmt = "NCHW" if is_pyramid(structure) else "NLC"  # what the modules give, as in timm's own models
    expected = model.forward_intermediates(x, output_fmt=output_fmt, intermediates_only=True)
    for kind, holds in (("hook", "body"), ("fx", "graph_module")):
        net = vision.small(structure, features_only=True, feature_cls=kind, out_indices=list(range(len(names))))
        net.get_submodule(holds).load_state_dict(model.state_dict(), strict=False)  # it has no classifier
        found = net(x)
        assert len(found) == len(expected)
        for state, feature in zip(found, expected):
            patches = state if state.dim() == 4 else state[:, model.num_prefix_tokens :]
            torch.testing.assert_close(patches, feature, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("kind", "holds"), [("hook", "body"), ("fx", "graph_module")])
def test_a_stage_with_a_class_token_gives_its_map_first(kind, holds):
    model, x = vision.small_with_images("sret, class token")
    expected = model.forward_intermediates(x, intermediates_only=True)
    net = vision.small("sret, class token", features_only=True, feature_cls=kind)
    net.get_submodule(holds).load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(list(net(x)), expected, rtol=1e-9, atol=1e-12)


def test_transformers_backbone_has_a_name_for_every_depth():
    transformers = pytest.importorskip("transformers")
    config = transformers.TimmBackboneConfig(backbone="plain_vit", use_pretrained_backbone=False, out_indices=[1, 2])
    backbone = transformers.TimmBackbone(config, **vision.arguments("plain_vit"))
    assert backbone.out_features == ["loop.after.1", "loop.after.2"]
    assert len(backbone(torch.randn(1, 3, 32, 32)).feature_maps) == 2


@every_case
def test_forward_intermediates(case):
    model, x = vision.small_with_images(case)
    count = len(model.feature_info)
    final, maps = model.forward_intermediates(x)
    torch.testing.assert_close(final, model.forward_features(x), rtol=0, atol=0)
    assert [tensor.shape[1] for tensor in maps] == [info["num_chs"] for info in model.feature_info]
    # the two layouts hold the same numbers
    rows = model.forward_intermediates(x, output_fmt="NLC", intermediates_only=True)
    for row, image in zip(rows, maps):
        torch.testing.assert_close(row.transpose(1, 2).unflatten(2, image.shape[2:]), image, rtol=0, atol=0)
    # depths are chosen by number, by index, and by index from the end; their maps come in order, as in timm's models
    for indices, chosen in ((2, [count - 2, count - 1]), ([0], [0]), ([-1, 0, 0], [0, count - 1])):
        for stop_early in (False, True):
            some = model.forward_intermediates(x, indices, stop_early=stop_early, intermediates_only=True)
            torch.testing.assert_close(some, [maps[index] for index in chosen], rtol=0, atol=0)
    # a pyramid's norm has the width of its last stage, also where an earlier one is the last that runs
    first = dict(indices=[0], norm=True, intermediates_only=True)
    normed, stopped = (model.forward_intermediates(x, stop_early=stop_early, **first) for stop_early in (False, True))
    torch.testing.assert_close(stopped, normed, rtol=0, atol=0)
    with pytest.raises(AssertionError):
        model.forward_intermediates(x, [count])
    with pytest.raises(ValueError, match="output_fmt='NHWC': must be 'NCHW' or 'NLC'"):
        model.forward_intermediates(x, output_fmt="NHWC")


@every_case
def test_the_normalised_last_depth_is_the_output(case):
    """With its class token; before the norm, it is what the norm reads. A pyramid's output is not normalised."""
    model, x = vision.small_with_images(case)
    how = dict(output_fmt="NLC", return_prefix_tokens=True)
    final, (*_, last) = model.forward_intermediates(x, norm=True, **how)
    (raw,) = model.forward_intermediates(x, 1, intermediates_only=True, **how)
    joined = [torch.cat(one[::-1], 1) if model.num_prefix_tokens else one for one in (last, raw)]
    torch.testing.assert_close(model.norm(joined[1]), joined[0])
    final = final.flatten(2).transpose(1, 2) if final.dim() == 4 else final
    torch.testing.assert_close(joined[is_pyramid(vision.CASES[case][0])], final)


@every_case
def test_forward_is_features_pooling_and_classifier(case):
    model, x = vision.small_with_images(case)
    tokens = model.forward_features(x)
    pooled = model.forward_head(tokens, pre_logits=True)
    assert pooled.shape == (2, model.num_features)
    torch.testing.assert_close(model.head(pooled), model(x))
    torch.testing.assert_close(model.forward_head(tokens), model(x))
    patches = tokens.flatten(2) if tokens.dim() == 4 else tokens[:, model.num_prefix_tokens :].transpose(1, 2)
    pools = {"avg": patches.mean(2), "max": patches.amax(2), "avgmax": (patches.mean(2) + patches.amax(2)) / 2}
    if model.num_prefix_tokens:
        pools["token"] = tokens[:, 0]
    if is_pyramid(vision.CASES[case][0]):  # SReT normalises after pooling
        pools = {key: model.norm(tensor) for key, tensor in pools.items()}
    torch.testing.assert_close(pooled, pools[model.global_pool])
    for pool, expected in {**pools, "": tokens}.items():
        model.reset_classifier(0, pool)
        torch.testing.assert_close(model(x), expected)
    if model.num_prefix_tokens:
        model.reset_classifier(vision.CLASSES, "")
        torch.testing.assert_close(model(x)[:, 0], model.head(pools["token"]))


@every_case
def test_reset_classifier(case):
    model, x = vision.small_with_images(case)
    pooled = model.forward_head(model.forward_features(x), pre_logits=True)
    body = {key: tensor.clone() for key, tensor in model.state_dict().items() if not key.startswith("head.")}
    for classes in (0, 5, 0, vision.CLASSES):
        model.reset_classifier(classes)
        assert model.num_classes == classes
        assert not model.head.training
        y = model(x)
        assert y.dtype == torch.float64
        assert y.shape[1] == (classes or model.num_features)
        assert ("head.weight" in model.state_dict()) == (classes > 0)
        if not classes:
            torch.testing.assert_close(y, pooled)
    assert isinstance(model.get_classifier(), torch.nn.Linear)
    assert all(torch.equal(model.state_dict()[key], tensor) for key, tensor in body.items())
    with pytest.raises(ValueError, match=r"global_pool='map': must be one of \('', "):
        model.reset_classifier(5, "map")


@pytest.mark.parametrize(("model", "loops", "maps"), [("uit", 2, 2), ("recursive_deit_tiny", 1, 3), ("sret_t", 1, 3)])
def test_intermediates_of_another_depth_are_those_of_the_output(model, loops, maps):
    model = vision.small(model)
    x = vision.images(model)
    with vision.at_passes(model, *(loops * len(loop.blocks) for loop in model.loops())):
        final, found = model.forward_intermediates(x)
        (last,) = model.forward_intermediates(x, [maps - 1], stop_early=True, intermediates_only=True)
        assert torch.equal(final, model.forward_features(x))
    assert len(found) == maps
    assert torch.equal(found[-1], last)


def test_every_loop_has_a_number_of_passes():
    model = vision.small("sret_t")
    model.passes = [1]
    with pytest.raises(ValueError, match=r"^passes=\(1,\): must have a number for each of"):
        model.forward_features(vision.images(model))


@pytest.mark.parametrize(
    ("name", "options"), [("uit", dict(depth=4, depth_range=(1, 4))), ("sret_nano", dict(depth_range=(1, 2)))]
)
def test_intermediates_in_training_are_those_of_all_passes(name, options):
    model = vision.small(name, **options).train()
    loop = model.loops()[0]
    model.passes = [1] * len(model.loops())
    model.set_num_updates(next(update for update in range(50) if model.training_depths[0].depth(update) == 1))
    ran = []
    for step in loop.after:
        step.register_forward_hook(lambda *call: ran.append(call))
    model.forward_intermediates(vision.images(model))
    assert len(ran) == loop.passes


@every_registered_structure
def test_the_norm_is_kept_if_it_is_not_pruned(structure):
    model, x = vision.small_with_images(structure)
    last = len(model.feature_info) - 1
    expected = model.forward_intermediates(x, indices=[last], norm=True, intermediates_only=True)[0]
    model.prune_intermediate_layers([last], prune_norm=False)
    found = model.forward_intermediates(x, indices=[last], norm=True, intermediates_only=True)[0]
    assert torch.equal(found, expected)


@every_case
def test_a_pruned_model_starts_anew_as_what_is_left(case):
    model, new = vision.small(case), vision.fresh(case, num_classes=0)
    for one in (model.float(), new):
        one.prune_intermediate_layers([0])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    torch.manual_seed(0)
    model.init_weights()
    expected = new.state_dict()
    for name, tensor in model.named_parameters():
        assert torch.equal(tensor, expected[name]), name
    assert model.forward_features(vision.images(model)).isfinite().all()
    model.reset_classifier(5, "avg")
    model.init_weights()
    assert model(vision.images(model)).shape[1] == 5


@pytest.mark.parametrize(("option", "value"), [("depth_range", (1, 2)), ("mixed_depth", True)])
def test_features_only_rejects_what_only_other_outputs_have(option, value):
    with pytest.raises(ValueError, match=re.escape(f"{option}={value}: must not be given with features_only=True")):
        vision.fresh("uit", features_only=True, **{option: value})


def test_features_of_a_saved_model_leave_out_its_depth_in_training(tmp_path):
    model = vision.fresh("uit", depth_range=(1, 2)).eval()
    save_for_hf(model, tmp_path, safe_serialization=True)
    saved, x = dict(pretrained=True, features_only=True), vision.images(model)
    found = timm.create_model(f"local-dir:{tmp_path}", **saved).eval()(x)
    torch.testing.assert_close(found, model.forward_intermediates(x, intermediates_only=True), rtol=0, atol=0)
    with pytest.raises(ValueError, match=re.escape("depth_range=(1, 3): must not be given with features_only=True")):
        timm.create_model(f"local-dir:{tmp_path}", depth_range=(1, 3), **saved)
