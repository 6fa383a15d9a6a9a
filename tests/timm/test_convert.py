"""Image models to timm's own: equal outputs without the plugin, or a rejection that states the reason."""

import argparse
import json
import re
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from timm.data import resolve_data_config
from timm.models import save_for_hf
from timm.models.vision_transformer import VisionTransformer

from tests.support import cli, vision
from tests.support.vision import CASES, MODELS, timm
from timm_plugin import checkpoints, convert
from timm_plugin.conversion import to_timm

# What timm's VisionTransformer has no place for, by model; every other one converts.
SIGNALS = "level signals of a pre-norm stack"
TABLES = "it adds positions and depths before every pass"
REJECTED = {
    **{name: SIGNALS for name in MODELS if name.startswith("ringformer_vit")},
    **{name: TABLES for name in MODELS if name.startswith("uit")},
    **{name: "it has stages" for name in MODELS if name.startswith("sret")},
    **{name: "MixerBlock" for name in MODELS if name.startswith("recursive_mixer")},
}
REJECTED_CASES = {
    "deit, external loops with NLL": "non-linear projection",
    "deit, NLL and LRC": "residual coefficients",
    "deit, any order": "residual coefficients",
    "deit, SReT's stem": "it has a convolutional stem",
}
CLOSE = dict(rtol=0, atol=1e-5)


def reason(case: str) -> str | None:
    return REJECTED_CASES.get(case, REJECTED.get(CASES[case][0]))


@vision.every_case
def test_timms_own_model_gives_the_same_logits(case):
    model = vision.small(case)
    if reason(case) is not None:
        name = CASES[case][0]
        with pytest.raises(ValueError, match=f"^{name} cannot become a VisionTransformer: .*{reason(case)}"):
            to_timm(model)
        return
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    converted, x = to_timm(model), vision.images(model)
    assert type(converted) is VisionTransformer
    torch.testing.assert_close(converted(x), model(x), **CLOSE)
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


def test_a_model_in_training_is_converted_at_full_depth():
    model = vision.small("recursive_deit_tiny", depth=1, loops=4, depth_range=(1, 4)).train()
    model.set_num_updates(2)  # which draws one pass
    assert len(to_timm(model).blocks) == 4


def test_a_model_that_runs_fewer_passes_is_rejected():
    model = vision.small("recursive_deit_tiny", depth=1, loops=4)
    model.passes = (2,)
    with pytest.raises(ValueError, match=r"^passes=\(2,\): must be None"):
        to_timm(model)


def test_a_hidden_width_that_timm_would_round_down_is_kept():
    model, x = vision.small_with_images("plain_vit", embed_dim=28, mlp_ratio=61 / 28)
    assert to_timm(model).blocks[0].mlp.fc1.out_features == 61
    torch.testing.assert_close(to_timm(model)(x), model(x), **CLOSE)


def test_timms_own_model_has_nothing_to_unshare():
    with pytest.raises(ValueError, match=r"^VisionTransformer: not a model of this plugin"):
        to_timm(timm.create_model("test_vit"))


def test_another_epsilon_is_rejected():
    with pytest.raises(ValueError, match="norm_eps=0.1: must be 1e-06"):
        to_timm(vision.small("plain_vit", norm_eps=0.1))


# Command lines

ALONE = """
import json, sys
sys.modules.update(timm_plugin=None, recurrence=None)
import timm, torch
model = timm.create_model("local-dir:" + sys.argv[1], pretrained=True).eval()
x = torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)
print(json.dumps([type(model).__name__, list(model.pretrained_cfg["mean"]), model(x).tolist()]))
"""


@pytest.mark.slow
def test_by_command_line_the_result_runs_without_the_plugin(tmp_path):
    model = vision.fresh("recursive_deit_tiny").eval()
    weights, x = tmp_path / "looped.safetensors", torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)
    save_file(model.state_dict(), weights)
    kwargs = [f"{name}={value}" for name, value in vision.arguments("recursive_deit_tiny").items()]
    own = tmp_path / "new" / "own"
    convert.main(["unshare", f"{weights}", f"{own}", "--model", "recursive_deit_tiny", "--model-kwargs", *kwargs])
    alone = cli.run(sys.executable, "-W", "ignore", "-c", ALONE, own, fresh=True)
    name, mean, logits = json.loads(alone.splitlines()[-1])
    assert name == "VisionTransformer"
    assert mean == list(model.pretrained_cfg["mean"])
    torch.testing.assert_close(torch.tensor(logits), model(x), **CLOSE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["looped.safetensors", "new"]


@pytest.mark.parametrize("size", [dict(img_size=None, input_size=[1, 32, 32]), dict(img_size=32, in_chans=1)])
def test_a_training_checkpoint_describes_its_model(size, tmp_path):
    """Also pooling, channels and size, for which timm's train.py has options: `--gp avg --input-size 1 32 32`."""
    path, kwargs = tmp_path / "last.pth.tar", vision.arguments("plain_vit")
    model = vision.fresh("plain_vit", global_pool="avg", in_chans=1, img_size=(32, 32)).eval()
    del kwargs["img_size"]
    args = argparse.Namespace(model="plain_vit", num_classes=kwargs.pop("num_classes"), crop_pct=0.5, **size)
    args.model_kwargs, args.gp = kwargs, "avg"
    torch.save(dict(arch="plain_vit", args=args, state_dict=model.state_dict()), path)
    loaded, x = checkpoints.load(path), vision.images(model)
    assert replace(loaded.config, img_size=(32, 32)) == model.config
    assert not loaded.training
    assert torch.equal(loaded(x), model(x))
    preprocessing = resolve_data_config(model=loaded)
    assert tuple(preprocessing.pop("input_size")) == (1, 32, 32)
    assert preprocessing.items() <= {**resolve_data_config(model=model), "crop_pct": 0.5}.items()
    assert checkpoints.load(path, global_pool="max").global_pool == "max"
    convert.main(["unshare", str(path), str(tmp_path / "own")])
    assert json.loads((tmp_path / "own" / "config.json").read_text())["pretrained_cfg"]["crop_pct"] == 0.5
    with pytest.raises(ValueError, match=r"last.pth.tar: not the weights of plain_vit with .*'depth': 5"):
        checkpoints.load(path, depth=5)
    for name, message in (("plane_vit", "Unknown model"), ("plain_vit.tag", r"Invalid pretrained tag \(tag\)")):
        with pytest.raises(ValueError, match=f"last.pth.tar: not the weights of {name} with .*: {message}"):
            checkpoints.load(path, name)


def test_a_loaded_model_has_the_preprocessing_of_its_training_everywhere(tmp_path):
    """In timm's older name of the configuration, and where timm's scripts ask for the size of a test."""
    path, args = tmp_path / "last.pth.tar", argparse.Namespace(num_classes=2, img_size=32, crop_pct=0.5)
    model = timm.create_model("resnet10t", num_classes=2)
    assert model.pretrained_cfg["test_input_size"]
    torch.save(dict(arch="resnet10t", args=args, state_dict=model.state_dict()), path)
    loaded = checkpoints.load(path)
    assert loaded.default_cfg == loaded.pretrained_cfg
    assert loaded.default_cfg["num_classes"] == 2
    for use_test_size in (False, True):
        config = resolve_data_config(model=loaded, use_test_size=use_test_size)
        assert (config["input_size"], config["crop_pct"]) == ((3, 32, 32), 0.5)


def test_the_crop_and_the_names_of_the_classes_are_kept(tmp_path):
    model = vision.fresh("plain_vit")
    kept = dict(crop_mode="border", num_classes=2, label_names=["cat", "dog"])
    model.reset_classifier(2)
    model.pretrained_cfg |= kept
    save_for_hf(model, tmp_path / "whole")
    convert.main(["unshare", str(tmp_path / "whole"), str(tmp_path / "own")])
    assert kept.items() <= json.loads((tmp_path / "own" / "config.json").read_text())["pretrained_cfg"].items()


def test_a_timm_that_would_not_save_the_options_is_rejected(tmp_path, rejected, monkeypatch):
    monkeypatch.setattr(convert, "SAVES_OPTIONS", False)
    assert ": must be 1.0.31 or later" in rejected(convert.main, "unshare", tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("unshare {file} {folder}", "OUT={folder}: must not exist yet"),
        ("unshare {file} {out}", "--model: must name the model of {file}"),
        ("unshare {folder}/missing.pth {out}", "IN={folder}/missing.pth: no such file"),
        (
            "unshare {file} {out} --model uit --model-kwargs depth=1",
            "its options describe a model of 8,449,768 parameters",
        ),
        ("unshare {file} {out} --model-kwargs depth", "argument --model-kwargs: 'depth': must be key=value"),
        ("share {file} {out} --rank 8", "convert share: error: was removed: train a looped model from scratch"),
    ],
)
def test_wrong_commands_are_rejected_and_write_nothing(tmp_path, rejected, arguments, message):
    names = dict(file=tmp_path / "weights.pth", folder=tmp_path, out=tmp_path / "out")
    torch.save({"head.bias": torch.zeros(3)}, names["file"])
    assert message.format(**names) in rejected(convert.main, *arguments.format(**names).split())
    assert not names["out"].exists()


MISSING = r"'depth': 9}: Missing key\(s\) in state_dict: \"\S+\" and \d+ more\. loop: the checkpoint stores 3 blocks"


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        (
            "cut.safetensors",
            ["--model", "uit"],
            "cut.safetensors: its options describe a model of 8,449,768 parameters",
        ),
        ("folder", [], "folder: "),
        ("other", [], "other/config.json: must name the architecture, as a folder in timm's format does"),
        ("whole", ["--model-kwargs", "depth=9"], rf"whole: not the weights of local-dir:.*{MISSING}"),
        ("whole", ["--model-kwargs", "depths=9"], "whole: not the weights of .* unexpected keyword .*'depths'"),
        ("whole", ["--model", "uit"], "--model=uit: must be recursive_deit_tiny, the model of .*whole"),
    ],
)
def test_weights_that_cannot_be_read_or_do_not_fit_are_named(tmp_path, rejected, place, options, message):
    model = vision.fresh("recursive_deit_tiny")
    for name in ("whole", "folder"):
        save_for_hf(model, tmp_path / name, safe_serialization=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"architectures": ["ViTForImageClassification"]}')
    weights = tmp_path / "folder" / "model.safetensors"
    for cut in (tmp_path / "cut.safetensors", weights):
        cut.write_bytes(weights.read_bytes()[:5000])
    said = rejected(convert.main, "unshare", tmp_path / place, tmp_path / "out", *options)
    assert re.search(message, said, flags=re.DOTALL)


def test_a_checkpoint_describes_its_model_and_no_other_file(tmp_path):
    args = argparse.Namespace(model="uit_small", num_classes=3, img_size=32)
    args.model_kwargs = {"embed_dim": 32, "num_heads": 2, "checkpoint_path": str(tmp_path / "other.pth")}
    model = timm.create_model("uit_small", num_classes=3, img_size=32, embed_dim=32, num_heads=2, patch_size=8)
    torch.save({"arch": "uit_small", "args": args, "state_dict": model.state_dict()}, tmp_path / "last.pth.tar")
    tuned = checkpoints.load(tmp_path / "last.pth.tar", patch_size=8)  # a run that began with other.pth, which is gone
    assert all(torch.equal(*pair) for pair in zip(tuned.parameters(), model.parameters()))
    given = dict(mean=(0.0, 0.1, 0.2), crop_mode="border", input_size=(3, 32, 32))
    args.model_kwargs["pretrained_cfg_overlay"] = {**given, "file": str(tmp_path / "other.pth")}
    args.img_size = None
    torch.save({"arch": "uit_small", "args": args, "state_dict": model.state_dict()}, tmp_path / "last.pth.tar")
    tuned = checkpoints.load(tmp_path / "last.pth.tar", patch_size=8)
    assert tuned.patch_embed.img_size == (32, 32)
    assert {**given, "file": None} == {name: tuned.pretrained_cfg.get(name) for name in (*given, "file")}
    torch.save({"arch": f"local-dir:{tmp_path}", "args": args}, tmp_path / "last.pth.tar")
    with pytest.raises(ValueError, match=r"--model: must name the model of .*last\.pth\.tar"):
        checkpoints.load(tmp_path / "last.pth.tar")
