"""Image models as ONNX: equal logits for any batch, each tensor stored once, and what onnxruntime needs to classify."""

import json
import sys

import numpy as np
import pytest
import torch
from timm.data import resolve_data_config
from timm.models import save_for_hf

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

import onnxruntime
from onnx import numpy_helper
from PIL import Image

from recurrence.weights.command import stored_bytes
from tests.support import cli, guide, vision
from tests.support.vision import every_registered_structure, timm
from timm_plugin import convert
from timm_plugin.onnx import about, export

GRAPH = 130_000  # bytes that the graph of any model takes, beside its tensors

WITHOUT = "import sys; sys.modules.update(torch=None, timm=None, timm_plugin=None, recurrence=None)"
CLASSIFY = f"""
{WITHOUT}
import json
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
known = {{name: json.loads(value) for name, value in session.get_modelmeta().custom_metadata_map.items()}}
images = np.load(sys.argv[2])
(logits,) = session.run(None, {{"images": images}})
print(json.dumps([known, logits.tolist()]))
"""


def run(made, images: torch.Tensor) -> torch.Tensor:
    """The logits of an exported model."""
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": images.numpy()})
    return torch.from_numpy(logits)


@pytest.mark.slow
@every_registered_structure
def test_a_file_stores_each_tensor_once_and_takes_any_batch(structure):
    model = vision.small(structure).float()
    made, images = export(model), vision.images(model, 3)
    for count in (1, 3):
        torch.testing.assert_close(run(made, images[:count]), model(images[:count]), rtol=1e-4, atol=1e-5)
    held = sum(numpy_helper.to_array(tensor).nbytes for tensor in made.graph.initializer)
    stored = stored_bytes(model.state_dict().values())
    assert held < stored + 5000  # shapes, and the inverses of permutations
    assert made.ByteSize() < stored + GRAPH


@pytest.mark.slow
def test_timms_own_model_without_patches_becomes_a_file_too():
    model = timm.create_model("resnet10t", num_classes=3, pretrained_cfg_overlay=dict(input_size=(3, 64, 64))).eval()
    images = torch.randn(3, 3, 64, 64)
    torch.testing.assert_close(run(export(model), images), model(images), rtol=1e-4, atol=1e-5)


def test_a_random_permutation_is_rejected():
    with pytest.raises(ValueError, match="^inference_permutation='random': a file of ONNX draws nothing"):
        export(vision.small("sret_t", inference_permutation="random"))


def test_images_have_the_models_channels_and_size():
    assert about(vision.fresh("uit", in_chans=4, img_size=(32, 64)))["input_size"] == (4, 32, 64)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """The shipped model, with the names of its classes, as a folder in timm's format."""
    model = timm.create_model("sret_nano.cifar10", pretrained=True).eval()
    folder = tmp_path_factory.mktemp("onnx") / "saved"
    save_for_hf(model, folder, safe_serialization=True)
    return model, folder


@pytest.mark.slow
def test_a_file_is_all_that_onnxruntime_needs(shipped, tmp_path, caplog):
    """In a process where neither torch nor timm can be imported."""
    model, folder = shipped
    images, file = vision.images(model), tmp_path / "new" / "sret_t.onnx"
    with caplog.at_level("INFO"):
        convert.main(["onnx", str(folder), str(file)])
    stored, size = stored_bytes(model.state_dict().values()), file.stat().st_size
    assert f"{stored:,} bytes of weights became {size:,}" in caplog.messages
    assert stored > 1e6
    assert size < 1.1 * stored
    np.save(tmp_path / "images.npy", images.numpy())
    answer = cli.run(sys.executable, "-I", "-c", CLASSIFY, file, tmp_path / "images.npy", fresh=True)
    known, logits = json.loads(answer.splitlines()[-1])
    torch.testing.assert_close(torch.tensor(logits), model(images), rtol=1e-4, atol=1e-5)
    expected = dict(architecture="sret_nano", label_names=model.pretrained_cfg["label_names"])
    assert known == json.loads(json.dumps(expected | resolve_data_config(model=model)))


@pytest.mark.slow
def test_the_guides_classifier_sees_what_timm_sees(shipped, tmp_path):
    """In pictures whose longer edge, and whose margin, does not come out even."""
    model, folder = shipped
    convert.main(["onnx", str(folder), str(tmp_path / "sret_t.onnx")])
    program = f"{WITHOUT}; import os; os.chdir(sys.argv[1])\n{guide.example('export.md', 'sret_t.onnx')}"
    for size in ((41, 67), (67, 41), (20, 61)):
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)).save(
            tmp_path / "ship.jpg"
        )
        said = cli.run(sys.executable, "-I", "-c", f"{program}\nnp.save('seen.npy', pixels)", tmp_path, fresh=True)
        pixels = timm.data.create_transform(**resolve_data_config(model=model))(Image.open(tmp_path / "ship.jpg"))
        seen = torch.from_numpy(np.load(tmp_path / "seen.npy")).permute(2, 0, 1)
        torch.testing.assert_close(seen, pixels, rtol=0, atol=1e-5)
        assert said.splitlines()[-1] == model.pretrained_cfg["label_names"][model(pixels[None]).argmax()]


@pytest.mark.slow
def test_eight_bits_take_a_third(shipped):
    model, _ = shipped
    made, images = export(model, int8=True), vision.images(model, 8)
    assert made.ByteSize() < 0.36 * stored_bytes(model.state_dict().values())
    torch.testing.assert_close(run(made, images), model(images), rtol=0, atol=0.1)


def test_a_file_that_exists_is_kept(shipped, tmp_path, rejected):
    (tmp_path / "model.onnx").write_text("kept")
    said = rejected(convert.main, "onnx", shipped[1], tmp_path / "model.onnx")
    assert f"OUT={tmp_path}/model.onnx: must not exist yet" in said
