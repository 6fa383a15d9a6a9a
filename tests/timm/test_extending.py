"""docs/extending.md: its example is a complete architecture, and it names the files of a forward pass."""

import re

import pytest
import torch

from tests.support import cli, vision
from tests.support.guide import GUIDE, files_crossed, imported_example
from tests.support.image_training import flags, train
from tests.support.vision import timm
from timm_plugin import train as train_image
from timm_plugin._layers import DropPath
from timm_plugin.checkpoints import create_model
from timm_plugin.task import soft_distillation
from timm_plugin.training import options

FILES = {"recurrence.papers.scaled": "class ScaledBlock", "timm_plugin.scaled_vit": "ScaledConfig"}
SMALL = {**vision.STACK, "num_classes": vision.CLASSES}


@pytest.fixture(scope="module")
def example():
    """The guide's files; what they register stays for the session."""
    with imported_example(FILES):
        yield


def scaled(**options) -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model("scaled_vit", **{**SMALL, **options})


def test_the_example_is_a_model_of_timms(example, tmp_path):
    model = scaled().eval()
    x = vision.images(model)
    assert (model.loop.order, len(model.loop.blocks)) == ((0, 0, 0), 1)
    maps = scaled(features_only=True).eval()(x)
    assert [tensor.shape for tensor in maps] == [(2, 32, 4, 4)] * 3
    torch.save({"state_dict": model.state_dict()}, tmp_path / "model.pth")
    assert torch.equal(scaled(checkpoint_path=str(tmp_path / "model.pth"), first_scale=2.0).eval()(x), model(x))
    deeper = scaled(depth=5, checkpoint_path=str(tmp_path / "model.pth")).eval()
    assert torch.equal(deeper.loop.own[4].scales[0], model.loop.own[2].scales[0])
    assert deeper(x).isfinite().all()


def test_the_example_has_the_options_of_every_vit(example):
    model = scaled(depth_range=(1, 3), drop_path_rate=0.2, first_scale=0.5).train()
    assert [module.drop_prob for module in model.modules() if isinstance(module, DropPath)] == pytest.approx(
        [0, 0.1, 0.2]
    )
    assert torch.equal(model.loop.own[1].scales[0], torch.full((32,), 0.5))
    depths = set()
    for update in range(12):
        model.set_num_updates(update)
        model(vision.images(model)).sum().backward()
        depths |= {*model.depths()}
    assert depths == {1, 2, 3}
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("scale", "rule"), [(-1.0, "first_scale=-1.0: must be > 0"), ("1", "first_scale='1': must be of type float")]
)
def test_wrong_options_of_the_example_are_rejected(example, scale, rule):
    with pytest.raises(ValueError, match=rule):
        scaled(first_scale=scale)


@pytest.mark.slow
def test_the_example_trains_by_command_from_a_package_of_ones_own(images, tmp_path, rejected):
    block, model = (
        text for text in re.findall(r"```python\n(.*?)```", GUIDE, re.S) if any(map(text.count, FILES.values()))
    )
    own = tmp_path / "own_models"
    own.mkdir()
    (own / "scaled.py").write_text(block)
    (own / "__init__.py").write_text(model.replace("recurrence.papers.scaled", "own_models.scaled"))
    words = ["--user-module", own, "--model", "scaled_vit", "--model-kwargs", "patch_size=8", "embed_dim=32", "depth=2"]
    assert "scaled_vit: " in train(images, tmp_path / "run", *words, "num_heads=2")
    accuracy = ["-m", "timm_plugin.accuracy", tmp_path / "run"]
    assert "names 'scaled_vit', which is not registered (see --user-module)" in cli.python(*accuracy, fails=True)
    assert '"top1"' in cli.python(*accuracy, "--user-module", own)
    dry = ["--seeds", "1", "--rows", "storage", "--dry-run"]
    planned = flags(images, tmp_path / "compared", *words, "num_heads=2")
    assert f"--user-module {own}" in cli.python("-m", "timm_plugin.compare", *planned, *dry)


PLAIN = """
from timm.models import register_model
from torch import nn


@register_model
def plain_net(pretrained=False, num_classes=10, **others):
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, num_classes))


@register_model
def narrow_net(pretrained=False, num_classes=10):
    return plain_net(num_classes=num_classes)
"""


@pytest.mark.slow
def test_a_model_without_timms_configuration_trains(images, tmp_path):
    """As timm's own trainer does with a plain module."""
    module, run = tmp_path / "my_nets.py", tmp_path / "run"
    module.write_text(PLAIN)
    words = ["--user-module", module, "--model", "plain_net", "--model-kwargs", "pretrained=True"]
    assert "plain_net: 39 stored parameters, weights of plain_net, and its head" in train(images, run, *words)
    assert '"top1"' in cli.python("-m", "timm_plugin.accuracy", run, "--user-module", module)
    cli.python("-m", "timm_plugin.convert", "onnx", run, tmp_path / "plain.onnx", "--user-module", module)
    assert (tmp_path / "plain.onnx").stat().st_size > 39 * 4
    failed = train(images, tmp_path / "other", *words, "--model", "narrow_net", fails=True)
    assert "error: --model-kwargs {'pretrained': True}: narrow_net() got an unexpected keyword argument" in failed


PATCHES = """
from collections import OrderedDict
from timm.layers import PatchEmbed
from timm.models import register_model
from torch import nn


@register_model
def patch_net(pretrained=False, num_classes=10, **others):
    parts = dict(patch_embed=PatchEmbed(16, 8), flatten=nn.Flatten(), head=nn.Linear(4 * 768, num_classes))
    return nn.Sequential(OrderedDict(parts))
"""


def test_a_plain_module_gets_what_distillation_and_onnx_ask_for(images, tmp_path):
    (tmp_path / "patch_nets.py").write_text(PATCHES)
    options.parser("").parse_args(flags(images, tmp_path, "--user-module", tmp_path / "patch_nets.py"))
    student, teacher = (create_model("patch_net", num_classes=3) for _ in range(2))
    task = soft_distillation(student, teacher, temperature=1.0)
    assert task(torch.zeros(2, 3, 16, 16), torch.tensor([0, 1]))["loss"].isfinite()
    about = pytest.importorskip("timm_plugin.onnx", exc_type=ImportError).about
    assert about(student)["input_size"] == (3, 16, 16)


def test_what_is_no_module_is_rejected(images, tmp_path, rejected):
    rules = {
        "none.py": (None, "must be a Python file, or a folder with"),
        "timm.py": ("", "must have another name"),
        "my.models.py": ("", "must have no dot in its name"),
        "importing.py": ("import my_other_models", "ModuleNotFoundError: No module named 'my_other_models'"),
        "wrong.py": ("int('x')", "ValueError: invalid literal for int()"),
        "misspelt.py": ("improt os", "SyntaxError: invalid syntax"),
    }
    for name, (text, rule) in rules.items():
        path = tmp_path / name
        if text is not None:
            path.write_text(text)
        error = rejected(train_image.main, *flags(images, tmp_path, "--user-module", path))
        assert f"--user-module: {path}: {rule}" in error


def test_the_guide_names_the_files_of_a_forward_pass():
    ((name, count, said),) = re.findall(r"^A forward pass of `(\w+)` .*? of (\d+) files: (.*?)\.$", GUIDE, re.S | re.M)
    model = vision.fresh(name).train()
    x = vision.images(model)
    named, files = re.findall(r"\]\(\.\./([\w/]+\.py)\)", said), files_crossed(lambda: model(x))
    ours = ("timm_plugin/", "recurrence/papers/")
    assert {file for file in named if file.startswith(ours)} == {file for file in files if file.startswith(ours)}
    assert len(files) <= int(count) == len(named), sorted(files)
