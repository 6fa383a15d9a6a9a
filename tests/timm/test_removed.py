"""Arguments of earlier versions: rejected, but a saved model may name those that only steered its training."""

import json
import re
from argparse import Namespace

import pytest
import torch
from timm.models import save_for_hf

from tests.support import vision
from tests.support.vision import timm
from timm_plugin import accuracy, checkpoints
from timm_plugin._compat import SAVES_OPTIONS
from timm_plugin._removed import OF_TRAINING, REMOVED

SHAPE = {**vision.STACK, "num_classes": 2}


@pytest.mark.parametrize("option", REMOVED)
def test_a_removed_argument_is_named(option):
    with pytest.raises(ValueError, match=f"^{option}=4: was removed: {re.escape(REMOVED[option])}$"):
        timm.create_model("recursive_deit_tiny", **{option: 4})
    vision.fresh("recursive_deit_tiny", **{option: None})  # as a saved model may say


@pytest.mark.parametrize("option", OF_TRAINING)
def test_a_training_checkpoint_may_have_steered_its_training(tmp_path, option):
    model = timm.create_model("uit", **SHAPE)
    args = Namespace(model="uit", model_kwargs={**SHAPE, option: 4}, num_classes=2)
    torch.save(dict(arch="uit", args=args, state_dict=model.state_dict()), tmp_path / "last.pth.tar")
    loaded = checkpoints.load(tmp_path / "last.pth.tar")
    assert torch.equal(loaded.loop.blocks[0].ffn.up.weight, model.loop.blocks[0].ffn.up.weight)


@pytest.mark.skipif(not SAVES_OPTIONS, reason="this timm saves no options")
def test_a_saved_model_may_have_steered_its_training_but_not_own_weights_that_are_no_more(tmp_path):
    save_for_hf(timm.create_model("uit", **SHAPE), tmp_path, safe_serialization=True)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in REMOVED:
        args = {**config["model_args"], name: 4}
        (tmp_path / "config.json").write_text(json.dumps({**config, "model_args": args}))
        if name in OF_TRAINING:
            timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
            with pytest.raises(ValueError, match=f"^{name}=5: was removed: "):
                timm.create_model(f"local-dir:{tmp_path}", pretrained=True, **{name: 5})
        else:
            with pytest.raises(ValueError, match=f"^{name}=4: was removed: "):
                timm.create_model(f"local-dir:{tmp_path}", pretrained=True)


def test_eight_bits_are_for_exported_models(rejected):
    said = rejected(accuracy.main, "run", "--eight-bits")
    assert said.endswith(
        "accuracy: error: --eight-bits: was removed: export the model, as to ONNX, and quantise it there\n"
    )
