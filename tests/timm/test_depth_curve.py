"""python -m timm_plugin.depth: the depth curve of a checkpoint."""

import argparse
import csv
import itertools
import time

import pytest
import torch
from PIL import Image
from torch import nn

from recurrence.block import Shape
from recurrence.loop import named_loops
from recurrence.papers.takase import shared_layers
from tests.support import vision
from tests.support.vision import timm
from timm_plugin import depth

SHAPE = {**vision.STACK, "num_classes": 2}
KWARGS = ["--model-kwargs", *(f"{name}={value}" for name, value in SHAPE.items())]


@pytest.mark.parametrize(
    ("model", "options", "names"),
    [
        ("uit", {}, ["1", "2", "3"]),
        ("recursive_deit_tiny", {}, ["3", "6"]),
        ("recursive_deit_tiny", dict(depth=2, loops=3, loop_order="external"), ["2", "4", "6"]),
        ("sret_t", {}, ["1", "2"]),
        ("sret_t", dict(depths=(2,), num_heads=(2,), groups=((8, 2),)), ["1", "2"]),
    ],
)
def test_the_depths_that_are_tried(model, options, names):
    model = vision.small(model, **options)
    loops, tried = named_loops(model), depth.assignments(model)
    assert [name for name, _ in tried] == names
    assert tried[-1][1] == {name: loop.passes for name, loop in loops.items()}


def test_a_model_of_one_depth_is_rejected():
    with pytest.raises(ValueError, match="the order 0 1 2: must repeat its blocks as SEQUENCE, CYCLE"):
        depth.assignments(vision.small("plain_vit"))


def test_a_model_without_loop_is_rejected(tmp_path, rejected):
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "vit.pth")
    said = rejected(depth.main, tmp_path, "--checkpoint", tmp_path / "vit.pth", "--model", "test_vit")
    assert "VisionTransformer: has no loop over depth to look into" in said


LOOPED = """
from timm.models import register_model
from torch import nn
from recurrence.block import Shape
from recurrence.papers.takase import shared_layers


@register_model
def looped_net(pretrained=False, **others):
    return nn.Sequential(shared_layers(Shape(8, 12, 2), (0, 0)))
"""


def test_a_looped_model_of_another_kind_is_rejected(tmp_path, rejected):
    (tmp_path / "looped_nets.py").write_text(LOOPED)
    weights, words = tmp_path / "looped.pth", ["--user-module", tmp_path / "looped_nets.py", "--model", "looped_net"]
    torch.save(nn.Sequential(shared_layers(Shape(8, 12, 2), (0, 0))).state_dict(), weights)
    said = rejected(depth.main, tmp_path, "--checkpoint", weights, *words)
    assert f"--checkpoint={weights}: must be of an ImageModel, not of a Sequential" in said


def test_time_is_per_image_and_no_graph_is_kept(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)  # a batch takes a second
    model, grads = vision.small("uit"), []
    model.register_forward_hook(lambda *_: grads.append(torch.is_grad_enabled()))
    found = depth.accuracy(model, [(vision.images(model), torch.zeros(2, dtype=torch.long))] * 3)
    assert grads == [False] * 3
    assert (len(found.outputs), found.seconds) == (6, 0.5)


@pytest.fixture
def images(images, tmp_path):
    """Two classes of the same images; one has the name of a split."""
    (tmp_path / "images").mkdir()
    for name in ("a", "train"):
        (tmp_path / "images" / name).symlink_to(images / "val" / "blue")
    return tmp_path / "images"


def test_the_curve_of_a_checkpoint(images, tmp_path, capsys):
    torch.manual_seed(0)
    torch.save(timm.create_model("uit", **SHAPE).state_dict(), tmp_path / "uit.pth")
    flags = ["--checkpoint", str(tmp_path / "uit.pth"), "--model", "uit", "--device", "cpu", "--tolerance", "100"]
    depth.main([str(images), *flags, "--output", str(tmp_path / "curve.csv"), *KWARGS])
    with (tmp_path / "curve.csv").open(newline="") as file:
        points = list(csv.DictReader(file))
    assert [point["depth"] for point in points] == ["1", "2", "3"]
    assert points[-1]["agreement"] == "1.0"
    assert float(points[-1]["score"]) == 50  # the classes have the same images
    assert "loop: safe from 1 to 3 passes" in capsys.readouterr().out


def test_images_are_cropped_as_in_training(images, tmp_path, monkeypatch):
    shape = {name: value for name, value in vision.STACK.items() if name != "img_size"}
    args = argparse.Namespace(model="uit", model_kwargs=shape, num_classes=2, img_size=32, crop_pct=0.5)
    model = timm.create_model("uit", **SHAPE)
    torch.save(dict(arch="uit", args=args, state_dict=model.state_dict()), tmp_path / "last.pth.tar")
    config = timm.data.resolve_data_config(dict(img_size=32, crop_pct=0.5), model=model)
    image = timm.data.create_transform(**config)(Image.open(images / "a" / "0.png"))
    config["crop_pct"] = model.pretrained_cfg["crop_pct"]
    assert not torch.equal(timm.data.create_transform(**config)(Image.open(images / "a" / "0.png")), image)
    read, seen = depth.read_images, []
    monkeypatch.setattr(depth, "read_images", lambda *args: seen.extend(read(*args)) or seen)
    depth.main([str(images), "--checkpoint", str(tmp_path / "last.pth.tar"), "--device", "cpu"])
    torch.testing.assert_close(seen[0][0][0], image)


def test_a_file_of_an_early_torch_is_named(images, tmp_path, rejected):
    path = tmp_path / "old.pth"
    torch.save(vision.small("uit").state_dict(), path, _use_new_zipfile_serialization=False)
    said = rejected(depth.main, images, "--checkpoint", path, "--model", "uit")
    assert f"{path}: is in torch's format before 1.6: load it with torch, and save it again" in said


def test_splits_folders_and_devices_are_checked(images, tmp_path, rejected):
    torch.save({"arch": "uit", "state_dict": vision.small("uit", num_classes=2).state_dict()}, tmp_path / "uit.pth")
    for folder in ("splits", "empty", "one"):
        (tmp_path / folder).mkdir()
    (tmp_path / "one" / "a").symlink_to(images / "a")
    for split in ("train", "test"):
        (tmp_path / "splits" / split).symlink_to(images)
    for flags, message in {
        (tmp_path / "splits",): "--split=validation: must be one of train, test",
        (tmp_path / "none",): "none: no such folder",
        (tmp_path / "empty",): "empty: Found 0 images",
        (tmp_path / "one",): f"IMAGES={tmp_path}/one: must have 2 classes, like the model, not 1",
        (images, "--device", "abacus"): "--device=abacus: must be a device of this machine",
        (images, "--device", "meta"): "--device=meta: must be a device of this machine",
        (images, "--model-kwargs", "depth"): "argument --model-kwargs: 'depth': must be key=value",
        (images, "--batch-size", "0"): "--batch-size=0: must be >= 1",
        (images, "--checkpoint", "missing"): "--checkpoint=missing: no such file",
        (images, "--output", tmp_path / "none" / "curve.csv"): "curve.csv: must be in a folder that exists",
        (images, "--tolerance", "nan"): "--tolerance: nan: must be a number >= 0 and < inf",
    }.items():
        assert message in rejected(depth.main, flags[0], "--checkpoint", tmp_path / "uit.pth", *KWARGS, *flags[1:])


def test_the_higher_accuracy_is_better(images, tmp_path, monkeypatch):
    torch.save(timm.create_model("uit", **SHAPE).state_dict(), tmp_path / "uit.pth")
    seen = []
    monkeypatch.setattr(depth.curve, "report", lambda *given, **named: seen.append(named))
    depth.main([str(images), "--checkpoint", str(tmp_path / "uit.pth"), "--model", "uit", "--device", "cpu", *KWARGS])
    assert seen == [{"higher_is_better": True}]
