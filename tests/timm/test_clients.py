"""Clients of image models beyond training them: torch.func, exported graphs of any batch, the meta device."""

import ast
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import func
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.support import cli, guide, vision
from tests.support.states import same_state
from tests.support.vision import every_registered_structure, timm
from timm_plugin import _compat
from timm_plugin.run import with_img_size


@every_registered_structure
def test_torch_func_gives_what_autograd_gives(structure):
    model, x = vision.small_with_images(structure)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(parameters, x):
        return func.functional_call(model, parameters, (x,)).square().mean()

    of_each = func.vmap(func.grad(loss), in_dims=(None, 0))(parameters, x[:, None])
    _, together = vision.loss_and_gradients(model, x)  # which parameters have one
    model.zero_grad()
    loss(dict(model.named_parameters()), x).backward()
    for name in together:
        torch.testing.assert_close(of_each[name].mean(0), model.get_parameter(name).grad)
    tangent = torch.randn_like(x)
    _, forward = func.jvp(model, (x,), (tangent,))
    jacobian = func.jacrev(model)(x)
    torch.testing.assert_close(forward, torch.tensordot(jacobian, tangent, dims=4))


@every_registered_structure
def test_twice_differentiable_with_the_plain_kernel(structure):
    model = vision.small(structure)
    x = vision.images(model).requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):  # torch's fused one has no second derivative
        (first,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        first.square().sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad.any()


@every_registered_structure
def test_made_on_the_meta_device(structure):
    model = timm.create_model(structure, **vision.arguments(structure), device="meta")
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    model.init_weights()
    assert same_state(model.state_dict(), vision.fresh(structure).state_dict())


def test_weights_of_another_depth_load_into_a_model_from_the_meta_device():
    trained, expected = vision.fresh("uit"), vision.fresh("uit", depth=5)
    model = timm.create_model("uit", **vision.arguments("uit", depth=5), device="meta")
    model.load_state_dict(trained.state_dict(), assign=True)
    assert model.depth_embed.equal(expected.depth_embed)


@every_registered_structure
def test_weights_load_where_new_tensors_are_on_the_meta_device(structure):
    trained = vision.fresh(structure).state_dict()
    with torch.device("meta"):
        model = timm.create_model(vision.CASES[structure][0], **vision.arguments(structure))
        model.load_state_dict(trained, assign=True)
    assert same_state(model.state_dict(), trained)


@vision.every_model
def test_images_of_any_size_are_rejected_by_name(name):
    with pytest.raises(ValueError, match=f"dynamic_img_size=True: must not be given, because {name} takes"):
        timm.create_model(name, dynamic_img_size=True)


@every_registered_structure
@pytest.mark.parametrize("given", [{}, dict(return_prefix_tokens=True), dict(intermediates_only=True)])
def test_a_dictionary_of_features_is_that_of_timm(structure, given):
    model, x = vision.small_with_images(structure)
    found = model.forward_intermediates(x, output_dict=True, **given)
    features, intermediates = model.forward_intermediates(x, return_prefix_tokens="return_prefix_tokens" in given)
    pairs = isinstance(intermediates[0], tuple)
    expected = {} if "intermediates_only" in given else {"image_features": features}
    expected["image_intermediates"] = [each[0] if pairs else each for each in intermediates]
    expected |= {"image_intermediates_prefix": [prefix for _, prefix in intermediates]} if pairs else {}
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    token = bool(model.num_prefix_tokens)
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, class_token=token, global_pool="avg")
    assert found.keys() == theirs.forward_intermediates(torch.zeros(1, 3, 32, 32), output_dict=True, **given).keys()


def test_the_example_of_grad_cam_shows_what_the_class_depends_on():
    names: dict = {}
    exec(guide.example("images.md", "heat"), names)
    assert names["heat"].shape == (2, 4, 4)
    assert names["heat"].flatten(1).amax(1).gt(0).all()


def test_the_example_of_features_loads_the_weights_of_a_run(tmp_path, monkeypatch):
    torch.manual_seed(0)
    weights = timm.create_model("sret_t", num_classes=3).state_dict()
    (tmp_path / "runs" / "sret_t").mkdir(parents=True)
    torch.save({"state_dict": weights}, tmp_path / "runs" / "sret_t" / "model_best.pth.tar")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(guide.example("images.md", "body"), names)
    body, kept = names["body"], ["stages.2.pool.weight", "patch_embed.conv3.weight"]
    assert all(torch.equal(body.state_dict()[f"model.{name}"], weights[name]) for name in kept)
    assert body.model.patch_embed.img_size == (640, 960)
    body.model.set_input_size((64, 96))
    assert [tuple(one.shape[2:]) for one in body.eval()(torch.zeros(1, 3, 64, 96))] == [(8, 12), (4, 6), (2, 3)]


def module_of_the_page(case: str, model: torch.nn.Module) -> torch.nn.Module:
    """The module that the page names for Grad-CAM."""
    text = (cli.REPOSITORY / "docs" / "images.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\S.*?) \| `(model\..*?)` \|", text, re.M))
    assert len(rows) == 4
    name = vision.CASES[case][0]
    token = name.startswith("sret_") and model.global_pool == "token"
    family = '`sret_*` with `global_pool="token"`' if token else f"`{name.partition('_')[0]}_*`"
    return eval(rows.get("`owf_vit*`" if name.startswith("owf_vit") else family, rows["all others"]))


@vision.every_case
def test_the_modules_for_grad_cam_have_a_gradient_at_every_patch(case):
    model, kept = vision.small(case), []
    module_of_the_page(case, model).register_forward_hook(lambda module, inputs, output: kept.append(output))
    logits = model(vision.images(model))
    (state,) = kept
    (gradient,) = torch.autograd.grad(logits.amax(1).sum(), state[0] if isinstance(state, tuple) else state)
    sizes = (
        gradient.flatten(2).norm(dim=1) if gradient.dim() == 4 else gradient[:, model.num_prefix_tokens :].norm(dim=2)
    )
    assert sizes.gt(0).all()


@pytest.mark.parametrize("name", ["uit", "sret_t"])
def test_an_image_without_a_batch_is_rejected_by_its_rule(name):
    model = vision.small(name)
    with pytest.raises(
        AssertionError, match=r"^images must be \(B, channels, height, width\); of one image, give image"
    ):
        model(vision.images(model)[0])


@pytest.mark.slow
def test_scripts_of_timm_run_with_the_plugin(tmp_path):
    """With the installed timm, or with that of a checkout, which lies beside the script."""
    (tmp_path / "beside.py").write_text("names = ['sret_t']\n")
    script, checkout, installed = tmp_path / "script.py", tmp_path / "timm", Path(timm.__file__).parent
    text = "import sys, timm, beside\nprint(timm.__file__, __name__, sys.argv[1:], timm.is_model(*beside.names))\n"
    words, env = ["--model", "sret_t", "--img-size", "64"], {"PYTHONPATH": str(cli.REPOSITORY)}
    for used, about, added in ((installed, "", []), (checkout, "# --model-kwargs", ["--model-kwargs", "img_size=64"])):
        script.write_text(f"{about}\n{text}")
        if used is checkout:
            checkout.symlink_to(installed)
        said = cli.run(sys.executable, "-m", "timm_plugin.run", script, *words, env=env)
        assert f"{used}/__init__.py __main__ {[*words, *added]} True" in said
    said = cli.run(sys.executable, "-m", "timm_plugin.run", "no.py", fails=True)
    assert "no.py: no such file; must be a script of a checkout of timm, such as validate.py" in said


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--mean 0 0 0 --model sret_t --img-size 64 images", ["img_size=64"]),
        ("--model=sret_nano.cifar10 --img-size=96", ["img_size=96"]),
        ("x --model sret_t --img-size 64 --model-kwargs loops=3", ["img_size=64", "loops=3"]),
        ("x --model sret_t --img-size 64 --model-kwargs img_size=32", None),
        ("x --model resnet18 --img-size 64", None),
        ("x --model sret_t", None),
    ],
)
def test_the_image_size_of_a_script_is_also_the_models(given, expected):
    """Which takes images of one size; scripts of timm before 1.0.31 only resize the images."""
    added = ["--model-kwargs", *expected] if expected else []
    assert with_img_size(given.split()) == [*given.split(), *added]
    if "resnet18" not in given:
        with pytest.raises(SystemExit, match=r"^--test-pool: must not be given with sret_"):
            with_img_size([*given.split(), "--test-pool"])


def test_names_that_not_every_timm_has_are_read_in_one_place():
    for path in set((cli.REPOSITORY / "timm_plugin").rglob("*.py")) - {Path(_compat.__file__)}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("timm."):
                names = {name.name for name in node.names}
                assert "._" not in node.module, (path.name, node.module)
                assert not names & set(_compat.__all__), (path.name, names)
                assert path.name == "repairs.py" or not any(name.startswith("_") for name in names), (path.name, names)
