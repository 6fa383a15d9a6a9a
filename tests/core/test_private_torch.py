"""What is not public in PyTorch: in one file, with replacements that compute the same."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import recurrence
from recurrence.private_torch import is_plain, is_watched


def test_private_names_of_torch_are_in_one_file():
    private = re.compile(r"torch\._\w|_python_dispatch|_call_impl|_(forward|backward)_(pre_)?hooks")
    files = Path(recurrence.__file__).parent.rglob("*.py")
    assert {path.name for path in files if private.search(path.read_text(encoding="utf-8"))} == {"private_torch.py"}


class Adapted(nn.Linear):
    """A layer as adapters make it."""

    def forward(self, x):
        return 2 * super().forward(x)


def replace(layer: nn.Linear, weight: torch.Tensor) -> None:
    layer.weight = nn.Parameter(weight)


HOOKS = {
    "hook": lambda layer: layer.register_forward_hook(lambda _, args, y: 2 * y),
    "hook before": lambda layer: layer.register_forward_pre_hook(lambda _, args: (args[0] + 1,)),
    "hook on gradients": lambda layer: layer.register_full_backward_hook(lambda _, grads, outputs: grads),
    "hook before gradients": lambda layer: layer.register_full_backward_pre_hook(lambda _, outputs: outputs),
    "forward replaced": lambda layer: setattr(layer, "forward", lambda x: 2 * F.linear(x, layer.weight)),
    "weight normed": lambda layer: nn.utils.spectral_norm(layer),
}
WEIGHTS = {
    "weight parametrised": lambda layer: nn.utils.parametrize.register_parametrization(layer, "weight", nn.Tanh()),
    "weight of another class": lambda layer: replace(
        layer, layer.weight.detach().as_subclass(type("Q", (torch.Tensor,), {}))
    ),
}


@pytest.mark.parametrize("change", {**HOOKS, **WEIGHTS})
def test_a_layer_that_was_changed_is_not_plain(change):
    layer = nn.Linear(6, 4)
    assert is_plain(layer)
    {**HOOKS, **WEIGHTS}[change](layer)
    assert not is_plain(layer)
    assert is_watched(layer) == (change in HOOKS)


def test_a_layer_of_another_class_is_not_plain():
    assert not is_plain(Adapted(6, 4))
    assert not is_plain(nn.LayerNorm(6))
    assert is_plain(nn.LayerNorm(6), nn.LayerNorm)


@pytest.mark.parametrize(
    "register",
    [
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
        nn.modules.module.register_module_full_backward_hook,
        nn.modules.module.register_module_full_backward_pre_hook,
    ],
)
def test_a_hook_on_all_modules_watches_each(register):
    layer = nn.Linear(6, 4)
    handle = register(lambda *_: None)
    try:
        assert is_watched(layer)
        assert not is_plain(layer)
    finally:
        handle.remove()
    assert is_plain(layer)
