"""Weights that the package ships, and names that have none."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support import cli, vision
from tests.support.vision import timm
from timm_plugin.depth import accuracy, read_images

FOLDER = cli.REPOSITORY / "timm_plugin" / "weights"
SHIPPED = sorted(path.stem for path in FOLDER.glob("*.safetensors"))
shipped = pytest.mark.parametrize("tagged", SHIPPED)
IMAGES = cli.REPOSITORY / "out" / "cifar10" / "jpeg"  # where recipes/cifar10/prepare.sh puts them


def test_the_tags_are_the_shipped_files():
    tagged = [name for name in timm.list_pretrained() if name.partition(".")[0] in vision.MODELS]
    assert sorted(tagged) == SHIPPED == ["sret_nano.cifar10"]


@shipped
def test_shipped_weights_load_offline(tagged, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", None)
    model = timm.create_model(tagged, pretrained=True)
    assert model.num_classes == len(model.pretrained_cfg["label_names"])
    stored = load_file(FOLDER / f"{tagged}.safetensors")
    assert model.state_dict().keys() == stored.keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, stored[name].to(tensor.dtype)), name
        assert not stored[name].is_floating_point() or stored[name].dtype == torch.float16


@shipped
def test_shipped_weights_start_a_training_on_other_classes(tagged):
    model, whole = (timm.create_model(tagged, pretrained=True, num_classes=classes).eval() for classes in (3, 10))
    x = vision.images(whole)
    assert model(x).shape == (2, 3)
    assert torch.equal(model.forward_features(x), whole.forward_features(x))


@pytest.mark.slow
@pytest.mark.skipif(not (IMAGES / "test").is_dir(), reason="needs recipes/cifar10/prepare.sh with CIFAR10=jpeg")
def test_the_score_is_that_of_the_card():
    model = timm.create_model("sret_nano.cifar10", pretrained=True).eval()
    assert model.patch_embed.img_size == model.pretrained_cfg["input_size"][1:]
    score, _, predicted, _ = accuracy(model, read_images(Path(IMAGES), "test", model, batch_size=250))
    assert len(predicted) == 10000
    said = re.search(r"Top-1 accuracy \| ([\d.]+) %", (FOLDER / "sret_nano.cifar10.md").read_text(encoding="utf-8"))
    assert float(said[1]) == pytest.approx(score, abs=0.05)
