"""Repairs of timm, which a program asks for: checkpoints that survive a kill, images, files named in errors."""

import ast
import gc
import json
import os
import string
import subprocess
import sys
import weakref
from argparse import Namespace

import numpy as np
import PIL
import pytest
import safetensors.torch
import timm
import torch
from PIL import Image
from timm.data import auto_augment, create_dataset, dataset
from timm.data.readers import reader_image_folder, reader_image_in_tar, reader_image_tar, reader_wds
from timm.models import _helpers
from timm.utils import CheckpointSaver
from timm.utils.misc import natural_key

from recurrence.private_torch import CACHES
from tests.support import cli
from timm_plugin import checkpoints, repairs
from timm_plugin.training.data import class_names, datasets


@pytest.fixture(autouse=True)
def repaired(monkeypatch):
    """Makes the repairs for a test."""
    for reader in (dataset, reader_wds):
        monkeypatch.setattr(reader, "Image", Image)  # our programs, run by other tests, replace it
    for reader in (reader_image_folder, reader_image_tar, reader_image_in_tar):
        monkeypatch.setattr(reader, "natural_key", natural_key)
    monkeypatch.setattr(_helpers, "_torch_load", _helpers._torch_load)
    for name in ("_save", "_replace", "_duplicate", "load_state_dict_from_checkpoint"):
        monkeypatch.setattr(CheckpointSaver, name, getattr(CheckpointSaver, name))
    repairs.apply()


IMPORTED = """
import os, sys
import timm, timm.data.readers.reader_wds, timm.task

def attributes():
    modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ("timm", "PIL")}
    kinds = {f"{kind.__module__}.{kind.__qualname__}": kind for module in modules.values() for kind in
             vars(module).values() if isinstance(kind, type) and kind.__module__ in modules}
    return {(owner, name): value for owner, thing in {**modules, **kinds}.items() for name, value in vars(thing).items()
            if name not in ("__warningregistry__", "__abstractmethods__")}

environment, before = dict(os.environ), attributes()
import timm_plugin
assert dict(os.environ) == environment, set(os.environ) ^ set(environment)
tools = ("analysis", "comparison", "conversion", "count", "eight_bits", "published", "task", "train", "training")
ours = [name for name in sys.modules if name.startswith(("recurrence.", "timm_plugin."))]
loaded = [name for name in ours if name.split(".")[1] in tools]
assert not loaded and "timm_plugin.sret" in sys.modules, loaded
after = attributes()
changed = [key for key, value in before.items() if after.get(key) is not value]
assert not changed, changed
assert len(before) > 1000 and timm.is_model("sret_t")
timm_plugin.repairs.apply()
after = attributes()
print([owner for owner, name in before if after[owner, name] is not before[owner, name]])
"""


def test_importing_registers_models_and_changes_nothing_else():
    names = {key: value for key, value in os.environ.items() if key not in CACHES}
    command = [sys.executable, "-c", IMPORTED]
    found = subprocess.run(command, capture_output=True, text=True, env=names, cwd=cli.REPOSITORY)
    assert not found.returncode, found.stderr
    repaired = set(ast.literal_eval(found.stdout))
    assert {"timm.data.dataset", "timm.utils.checkpoint_saver.CheckpointSaver"} <= repaired  # it would be seen


@pytest.fixture
def saver(tmp_path) -> CheckpointSaver:
    model = torch.nn.Linear(2, 2)
    return CheckpointSaver(model, torch.optim.SGD(model.parameters()), checkpoint_dir=str(tmp_path), max_history=1)


def test_no_checkpoint_is_removed_before_another_takes_its_name(saver, tmp_path, monkeypatch):
    saver.save_checkpoint(0, metric=1.0)
    names = {"last.pth.tar", "model_best.pth.tar", "checkpoint-0.pth.tar"}
    assert {path.name for path in tmp_path.iterdir()} == names
    seen, remove = [], os.remove
    for name in ("remove", "unlink"):
        monkeypatch.setattr(os, name, lambda path, **options: (seen.append(os.path.basename(path)), remove(path)))
    saver.save_checkpoint(1, metric=2.0)
    assert "checkpoint-0.pth.tar" in seen
    assert not {"last.pth.tar", "model_best.pth.tar"} & set(seen)
    assert timm.utils.checkpoint_saver.load_checkpoint_metadata(tmp_path / "model_best.pth.tar")["epoch"] == 1


@pytest.mark.parametrize(("metric", "best"), [(2.0, (1, 2.0)), (0.5, (0, 1.0))])
def test_a_save_that_was_interrupted_before_its_ranking_is_ranked(saver, tmp_path, metric, best):
    saver.save_checkpoint(0, metric=1.0)
    saver._save(str(tmp_path / "tmp.pth.tar"), 1, metric)  # what timm does before it ranks a checkpoint
    saver._replace(str(tmp_path / "tmp.pth.tar"), str(tmp_path / "last.pth.tar"))
    again = CheckpointSaver(saver.model, saver.optimizer, checkpoint_dir=str(tmp_path), max_history=1)
    assert again.load_state_dict_from_checkpoint(tmp_path / "last.pth.tar")
    assert (again.best_epoch, again.best_metric) == best
    ranked = {"last.pth.tar", "model_best.pth.tar", f"checkpoint-{best[0]}.pth.tar"}
    assert {path.name for path in tmp_path.iterdir()} == ranked
    assert timm.utils.checkpoint_saver.load_checkpoint_metadata(tmp_path / "model_best.pth.tar")["epoch"] == best[0]


@pytest.mark.parametrize("earlier", [{}, {"metric": 1.0}, {"metric": None}], ids=["none", "better", "without a metric"])
def test_an_interrupted_save_is_ranked_where_there_is_room(saver, tmp_path, earlier):
    for _ in earlier:
        saver.save_checkpoint(0, **earlier)
    saver._save(str(tmp_path / "last.pth.tar"), 1, 0.5)
    most = 1 if earlier == {"metric": None} else 2  # a checkpoint without a metric is the worst
    again = CheckpointSaver(saver.model, saver.optimizer, checkpoint_dir=str(tmp_path), max_history=most)
    again.load_state_dict_from_checkpoint(tmp_path / "last.pth.tar")
    assert str(tmp_path / "checkpoint-1.pth.tar") in dict(again.checkpoint_files)
    assert (tmp_path / "checkpoint-1.pth.tar").exists()


@pytest.fixture
def truncated(tmp_path):
    (tmp_path / "class").mkdir()
    for name in ("0.png", "1.png"):
        Image.effect_noise((32, 32), 90).save(tmp_path / "class" / name)
    path = tmp_path / "class" / "0.png"
    path.write_bytes(path.read_bytes()[:300])
    return path


def test_timm_still_skips_a_broken_image(truncated):
    data = create_dataset("", truncated.parents[1])
    assert data[0][0] == data[1][0]
    truncated.write_bytes(b"no image")
    with pytest.raises(PIL.UnidentifiedImageError):
        dataset.Image.open(truncated)


def test_a_program_may_reject_broken_images_by_name(truncated, monkeypatch):
    repairs.reject_unreadable_images()
    data = create_dataset("", truncated.parents[1])
    with pytest.raises(ValueError, match=f"^{truncated}: cannot be read as an image: "):
        data[0]
    monkeypatch.setattr(dataset, "Image", Image)
    monkeypatch.setenv("TIMM_DATASET_MAX_RETRIES", "2")
    repairs.reject_unreadable_images()
    assert data[0][0] == data[1][0]


def test_an_opened_image_is_not_read_before_it_is_used(truncated):
    """Its header has the size; the damage is further on."""
    for reader in (dataset, reader_wds):
        image = reader.Image.open(truncated)
        assert image.size == (32, 32)
        with pytest.raises(OSError, match="truncated"):
            image.load()


GREYS = np.array([[200, 128, 65534, 385]], dtype=np.uint16)


@pytest.fixture(params=["png", "tiff"])
def greys(request, tmp_path):
    """A data set of one image of 16-bit greys."""
    (tmp_path / "class").mkdir()
    Image.fromarray(GREYS).save(tmp_path / "class" / "0.png", request.param)
    return tmp_path


EIGHT_BITS = [[1, 0, 255, 1]]  # the nearest


@pytest.mark.parametrize("mode", ["L", "RGB", "I;16", "I", "F", ""])
def test_greys_of_16_bits_become_8_unless_16_are_asked_for(greys, mode):
    image, _ = create_dataset("", greys, input_img_mode=mode)[0]
    pixels = np.asarray(image)[..., 2] if mode == "RGB" else np.asarray(image)
    assert pixels.tolist() == (EIGHT_BITS if mode in ("L", "RGB") else GREYS.tolist())


def test_one_file_is_opened_as_the_trainer_reads_it(greys):
    """Also of a kind that timm does not look for in folders."""
    (file,) = (greys / "class").iterdir()
    (greys / "0.pgm").write_bytes(b"P5 4 1 65535\n" + GREYS.astype(">u2").tobytes())
    for path in (file, greys / "0.pgm"):
        assert np.asarray(repairs.open_image(path).convert("RGB"))[..., 0].tolist() == EIGHT_BITS


def test_an_image_of_16_bits_holds_itself_no_longer_than_others(greys):
    (file,) = (greys / "class").iterdir()
    image = repairs.open_image(file)
    image.convert("RGB")
    kept = weakref.ref(image)
    gc.disable()
    try:
        del image
        assert kept() is None
    finally:
        gc.enable()


def test_torchvisions_folders_have_them_too(greys):
    args = Namespace(dataset="torch/image_folder", data=str(greys), train_split="", val_split="")
    train, *_ = datasets(args)
    image, _ = train[0]
    assert np.asarray(image.convert("RGB"))[..., 0].tolist() == EIGHT_BITS


def test_greys_of_32_bits_are_converted_as_ever(tmp_path):
    (tmp_path / "class").mkdir()
    Image.fromarray(np.array([[7, -3, 300]], dtype=np.int32)).save(tmp_path / "class" / "0.png", "tiff")
    image, _ = create_dataset("", tmp_path, input_img_mode="L")[0]
    assert np.asarray(image).tolist() == [[7, 0, 255]]


def test_webdatasets_reader_converts_them_too(greys, monkeypatch):
    # a function of webdataset, which need not be installed
    monkeypatch.setattr(reader_wds, "getfirst", dict.__getitem__, raising=False)
    (file,) = (greys / "class").iterdir()
    sample = {"jpg": file.read_bytes(), "cls": b"3"}
    assert np.asarray(reader_wds._decode(sample, image_mode="L")["jpg"]).tolist() == EIGHT_BITS
    assert np.asarray(reader_wds._decode(sample, image_mode="I;16")["jpg"]).tolist() == GREYS.tolist()


@pytest.mark.parametrize(("name", "level"), [("Posterize", 0), ("PosterizeIncreasing", 10)])
def test_posterised_to_no_bit_is_black(name, level):
    posterise = auto_augment.AugmentOp(name, prob=1, magnitude=level)
    assert posterise(Image.new("RGB", (1, 1), "white")).getpixel((0, 0)) == (0, 0, 0)


def test_classes_that_timm_takes_for_equal_are_in_the_order_of_their_characters(tmp_path):
    """In timm they are in that of a set, which differs between processes."""
    names = ["01", "1", *(one for letter in string.ascii_uppercase for one in (letter, letter.lower())), "z 2", "z 10"]
    for name in reversed(names):
        (tmp_path / "classes" / name).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "classes" / name / "0.png")
    cli.run("tar", "-cf", tmp_path / "classes.tar", "-C", tmp_path / "classes", *reversed(names))
    for root in ("classes", "classes.tar"):
        assert class_names(create_dataset("", tmp_path / root)) == names, root


@pytest.mark.parametrize("content", [b"", b"nothing", b"PK\x03\x04torn"])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path, content):
    path = tmp_path / "model.pth.tar"
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=rf"^{path}: not a checkpoint that can be read safely, as it is truncated, or of"
    ):
        checkpoints.load(path)


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("keeps", [0.05, 0.5, 0.999])
def test_a_truncated_checkpoint_is_named_for_every_model(tmp_path, suffix, keeps):
    path, model = tmp_path / f"weights.{suffix}", timm.create_model("resnet10t")
    if suffix == "pth":
        torch.save(model.state_dict(), path)
    else:
        safetensors.torch.save_file(model.state_dict(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keeps * len(whole))])
    with pytest.raises(RuntimeError, match=f"^{path}: .*truncated, or "):
        timm.create_model("resnet10t", checkpoint_path=str(path))
    with pytest.raises(FileNotFoundError):
        timm.create_model("resnet10t", checkpoint_path=str(tmp_path / f"none.{suffix}"))


def test_timms_words_on_unsafe_checkpoints_are_kept(tmp_path):
    path = tmp_path / "unsafe.pth"
    torch.save({"state_dict": {}, "args": cli.run}, path)
    with pytest.raises(
        RuntimeError, match=rf"(?s)^{path}: .* refers to \S+; nothing in it was run. .*weights_only=False"
    ):
        timm.create_model("resnet10t", checkpoint_path=str(path))


def test_a_folder_does_not_say_where_else_its_weights_are(tmp_path):
    arguments = {"pretrained_cfg_overlay": {"url": "http://127.0.0.1:9/x"}}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "sret_t", "model_args": arguments}))
    with pytest.raises(ValueError, match="says pretrained_cfg_overlay=.*: must not name other files or addresses"):
        checkpoints.load(tmp_path)


def test_repairs_are_made_once():
    save, read = CheckpointSaver._save, CheckpointSaver.load_state_dict_from_checkpoint
    repairs.apply()
    assert CheckpointSaver._save is save is repairs._save
    assert CheckpointSaver.load_state_dict_from_checkpoint is read
    assert save.__wrapped__ is not save


def test_repairs_of_functions_that_an_older_timm_lacks_are_skipped(monkeypatch):
    monkeypatch.delattr(CheckpointSaver, "load_state_dict_from_checkpoint")
    monkeypatch.delattr(_helpers, "_torch_load")
    repairs.apply()
    assert not hasattr(CheckpointSaver, "load_state_dict_from_checkpoint")
    assert not hasattr(_helpers, "_torch_load")
