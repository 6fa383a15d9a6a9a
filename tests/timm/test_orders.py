"""Any order of an image model's blocks."""

from argparse import Namespace

import pytest
import torch
from timm.utils import ParseKwargs

from tests.support import vision
from tests.support.vision import timm

TINY = dict(img_size=32, patch_size=8, embed_dim=16, num_heads=2)


@pytest.mark.parametrize("name", ["plain_vit", "uit", "recursive_deit_tiny", "recursive_mixer_s16"])
def test_an_order_replaces_the_layers_of_the_preset(name):
    sizes = {**TINY, "num_heads": 1} if "mixer" in name else TINY
    model = timm.create_model(name, **sizes, order=(0, 1, 1, 2))
    assert (model.loop.order, len(model.loop.blocks), model.config.depth) == ((0, 1, 1, 2), 3, 3)
    assert len(model.feature_info) == 4
    timm.create_model(name, **sizes, order=(0, 1, 1, 2), depth=3)


@pytest.mark.parametrize(
    ("order", "given"),
    [((0, 0, 1, 1), {}), ((0, 1, 0, 1), dict(loop_order="external")), ((0, 1, 1, 0), dict(loop_order="reverse"))],
)
def test_the_order_of_loops_is_the_loops(order, given):
    looped = vision.small("recursive_deit_tiny", depth=2, loops=2, **given)
    ordered = vision.small("recursive_deit_tiny", depth=2, order=order, seed=1)
    ordered.load_state_dict(looped.state_dict())
    assert torch.equal(ordered(vision.images(looped)), looped(vision.images(looped)))


def test_a_text_of_the_command_line_is_an_order():
    """As `--model-kwargs` of timm's train.py parses it; that of the plugin's trainer does the same."""
    ParseKwargs([], "kwargs")(None, given := Namespace(), ["order=0,1,1,2", "depth=3"])
    assert timm.create_model("plain_vit", **TINY, **given.kwargs).loop.order == (0, 1, 1, 2)
