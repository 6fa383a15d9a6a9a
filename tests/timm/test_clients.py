"""Clients of image models beyond training them: torch.func, exported graphs of any batch, the meta device."""

import ast
import sys
from pathlib import Path

import pytest
import torch
from torch import func
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.support import cli, vision
from tests.support.vision import every_registered_structure, timm
from timm_plugin import _compat


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


@vision.every_model
def test_made_on_the_meta_device(name):
    model = timm.create_model(name, **vision.arguments(name), device="meta")
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    model.init_weights()
    expected, found = vision.fresh(name).state_dict(), model.state_dict()
    assert list(found) == list(expected)
    assert all(found[key].equal(expected[key]) for key in expected)


def test_weights_load_into_a_model_from_the_meta_device():
    trained = vision.small("recursive_deit_tiny").float()
    model = timm.create_model("recursive_deit_tiny", **vision.arguments("recursive_deit_tiny"), device="meta")
    model.to_empty(device="cpu").load_state_dict(trained.state_dict())
    for key, tensor in model.state_dict().items():
        assert tensor.equal(trained.state_dict()[key])


def test_weights_of_another_depth_load_into_a_model_from_the_meta_device():
    trained, expected = vision.fresh("uit"), vision.fresh("uit", depth=5)
    model = timm.create_model("uit", **vision.arguments("uit", depth=5), device="meta")
    model.load_state_dict(trained.state_dict(), assign=True)
    assert model.depth_embed.equal(expected.depth_embed)


@vision.every_model
def test_images_of_any_size_are_rejected_by_name(name):
    with pytest.raises(ValueError, match=f"dynamic_img_size=True: {name} takes images of the size that img_size gives"):
        timm.create_model(name, dynamic_img_size=True)


def test_a_mixer_says_why_its_size_is_fixed():
    model = vision.fresh("recursive_mixer_s16")
    assert not hasattr(model, "set_input_size")  # as timm asks
    with pytest.raises(AttributeError, match=r"set_input_size: an MLP over the tokens takes \(32, 32\) only"):
        model.set_input_size(64)


@pytest.mark.slow
def test_scripts_of_timm_run_with_the_plugin(tmp_path):
    (tmp_path / "beside.py").write_text("names = ['sret_t']\n")
    script = tmp_path / "script.py"
    script.write_text("import sys, timm, beside\nprint(__name__, sys.argv[1:], timm.is_model(*beside.names))\n")
    assert "__main__ ['--model', 'x'] True" in cli.run(
        sys.executable, "-m", "timm_plugin.run", script, "--model", "x", env={"PYTHONPATH": str(cli.REPOSITORY)}
    )
    said = cli.run(sys.executable, "-m", "timm_plugin.run", "no.py", fails=True)
    assert "no.py: no such file; must be a script of a checkout of timm, such as validate.py" in said


def test_names_that_not_every_timm_has_are_read_in_one_place():
    for path in set((cli.REPOSITORY / "timm_plugin").glob("*.py")) - {Path(_compat.__file__)}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("timm."):
                names = {name.name for name in node.names}
                assert "._" not in node.module, (path.name, node.module)
                assert not names & set(_compat.__all__), (path.name, names)
