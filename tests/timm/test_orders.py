"""Any order of an image model's blocks."""

from argparse import Namespace

import pytest
import torch
from timm.utils import ParseKwargs

from tests.support import vision
from tests.support.vision import timm

TINY = dict(img_size=32, patch_size=8, embed_dim=16, num_heads=2)


@pytest.mark.parametrize("name", ["plain_vit", "uit", "ringformer_vit", "recursive_deit_tiny", "recursive_mixer_s16"])
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


def test_a_pass_of_ringformer_owns_its_norms_and_signals_in_any_order():
    trained, used = (
        vision.small("ringformer_vit", order=(0, 1, 1, 2)),
        vision.small("ringformer_vit", order=(0, 1, 1, 1, 2)),
    )
    used.load_state_dict(dict(trained.state_dict()))  # without metadata: the order is noted
    for own, source in zip(used.loop.own, (0, 1, 2, 2, 3)):
        theirs = trained.loop.own[source].state_dict()
        assert theirs.keys() >= {"norms.0.weight", "qkv_signal.up", "ffn_signal.down"}
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in own.state_dict().items())
    x = vision.images(used)
    with vision.at_passes(trained, 5):
        assert torch.equal(trained(x), used(x))
