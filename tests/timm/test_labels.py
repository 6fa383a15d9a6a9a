"""Labels never lie: names of classes go with the weights and the head that they belong to, and folders are checked."""

import argparse
import shutil
import sys
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from timm.data import dataset
from timm.models import save_for_hf

from tests.support import guide
from tests.support.image_training import COLOURS, SMALL, checkpoint, flags, train
from tests.support.vision import timm_plugin
from timm_plugin import accuracy, depth
from timm_plugin import train as train_image
from timm_plugin.checkpoints import load
from timm_plugin.training.folders import different_classes, left_out, unreadable

NANO = "sret_nano.cifar10"
WEIGHTS = str(Path(timm_plugin.__file__).parent / "weights" / f"{NANO}.safetensors")


def names_of(model):
    assert model.default_cfg["label_names"] == model.pretrained_cfg["label_names"]
    return model.pretrained_cfg["label_names"]


@pytest.mark.parametrize(
    "other",
    [
        dict(pretrained=True, num_classes=5),
        dict(num_classes=5),
        dict(checkpoint_path=WEIGHTS),
        dict(pretrained=True, features_only=True),
        dict(pretrained=True, pretrained_cfg_overlay=dict(file=WEIGHTS)),
    ],
)
def test_names_are_of_the_named_weights_with_their_head(other):
    assert names_of(timm.create_model(NANO, pretrained=True))[:2] == ("airplane", "automobile")
    assert names_of(timm.create_model(NANO, **other)) is None


def test_names_may_be_given_with_other_weights_and_go_with_the_head():
    names = tuple("abcdefghij")
    overlay = dict(file=WEIGHTS, label_names=names)
    model = timm.create_model("sret_nano", pretrained=True, pretrained_cfg_overlay=overlay)
    assert names_of(model) == names
    model.reset_classifier(10)
    assert names_of(model) is None


@pytest.fixture(scope="module")
def run(images, tmp_path_factory) -> tuple[Path, Path]:
    """Images, and a run that has learned their colours, whose names are in another order than the alphabet's."""
    folder, output = (tmp_path_factory.mktemp(name) for name in ("colours", "run"))
    for split in ("train", "val"):
        (folder / split).mkdir()
        for name, other in zip(COLOURS, ("Zebra", "ant", "Bee 10"), strict=True):
            shutil.copytree(images / split / name, folder / split / other)
    model = ["--model", "ringformer_vit", "--model-kwargs", "patch_size=4", "embed_dim=24", "depth=2", "num_heads=2"]
    said = train(folder, output, *model, "--lr", "0.01", "--no-aug", "--epochs", "6")
    assert "3 classes, ant, Bee 10, Zebra; 48 images of --train-split train and 15 of val" in said
    assert "stored parameters, new weights" in said
    return folder, output


@pytest.mark.slow
def test_a_trained_model_names_an_image(run, tmp_path):
    """As on the page, from the checkpoint and from a folder in timm's format."""
    folder, output = run
    names = ["ant", "Bee 10", "Zebra"]
    assert checkpoint(output)["args"].label_names == names
    trained = load(output / "model_best.pth.tar")
    save_for_hf(trained, tmp_path / "saved", safe_serialization=True)
    for model in (trained, timm.create_model(f"local-dir:{tmp_path}/saved", pretrained=True).eval()):
        assert model.pretrained_cfg["label_names"] == names
        transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
        right = 0
        for file in (folder / "val").rglob("*.png"):
            logits = model(transform(Image.open(file).convert("RGB"))[None])
            assert logits.shape == (1, 3)
            right += model.pretrained_cfg["label_names"][logits.argmax()] == file.parent.name
        assert right > 10  # of 15
    given: dict = {}
    exec(guide.example("images.md", "def label"), given)
    assert given["label"](output / "last.pth.tar", file)[0] in names
    assert given["label"](output, file) == given["label"](output / "model_best.pth.tar", file)
    other = timm.create_model(f"local-dir:{tmp_path}/saved", pretrained=True, num_classes=4)
    assert names_of(other) is None


@pytest.mark.slow
def test_a_renamed_class_is_named_wherever_the_run_is_used(run, tmp_path, rejected):
    folder, output = shutil.copytree(run[0], tmp_path / "images"), run[1]
    model = ["--model", "ringformer_vit", "--model-kwargs", "patch_size=4", "embed_dim=24", "depth=2", "num_heads=2"]
    again = flags(folder, output, *model, "--lr", "0.01", "--no-aug", "--epochs", "6", "--resume")
    (folder / "val" / "ant").rename(folder / "val" / "moth")
    error = "--val-split val: must hold the classes of train: lacks 0 (ant) and also has 1 (moth)"
    assert error in rejected(train_image.main, *again)
    (folder / "train" / "ant").rename(folder / "train" / "moth")
    difference = "lacks 0 (ant) and also has 1 (moth)"
    assert f"its run had other classes than {folder}, which {difference}" in rejected(train_image.main, *again)
    curve = rejected(depth.main, folder, "--checkpoint", output / "last.pth.tar")
    assert f"IMAGES={folder}: must have the model's classes: {difference}" in curve
    for split in ("train", "val"):  # of the run itself, which no test after this one uses
        (run[0] / split / "ant").rename(run[0] / split / "moth")
    assert f"RUN={output}: its images must have the model's classes: {difference}" in rejected(accuracy.main, output)


def test_another_order_of_the_same_classes_is_a_difference():
    assert different_classes(["a", "b"], ("a", "b")) is None
    assert different_classes(["a", "b"], ["b", "a"]) == "has them in another order, b, a"
    assert different_classes([*map(str, range(30))], ["0"]).endswith("9 (9), 10 (10) and 19 more")


@pytest.fixture
def damaged(images, tmp_path) -> Path:
    """Images of which three are damaged, a class has none, and two are of a kind that timm does not read."""
    folder = shutil.copytree(images, tmp_path / "damaged")
    for path, content in ((folder / "train/red/0.png", 200), (folder / "val/blue/1.png", 0)):
        path.write_bytes(path.read_bytes()[:content])
    photograph = Image.effect_noise((64, 64), 90)
    photograph.save(folder / "val" / "red" / "2.jpg")
    (folder / "val/red/3.jpg").write_bytes((folder / "val/red/2.jpg").read_bytes()[:-500])
    for split in ("train", "val"):
        (folder / split / "yellow").mkdir()
        photograph.save(folder / split / "yellow" / "0.gif")
    return folder


@pytest.mark.parametrize("workers", ["0", "1"])
def test_all_unreadable_images_are_named_before_any_work(damaged, tmp_path, monkeypatch, caplog, rejected, workers):
    error = rejected(train_image.main, *flags(damaged, tmp_path / "run", "--workers", workers))
    assert f"DATA {damaged}: 3 images cannot be read; remove what is damaged, or set TIMM_DATASET_MAX_RETRIES" in error
    named = [record.getMessage().partition(":")[0] for record in caplog.records if record.levelname == "ERROR"]
    assert named == [f"{damaged}/{name}" for name in ("train/red/0.png", "val/blue/1.png", "val/red/3.jpg")]
    assert not (tmp_path / "run").exists()


def test_what_a_folder_leaves_out_is_named(damaged):
    images = timm.data.create_dataset("", damaged, "train")
    empty, others = left_out(images)
    assert empty == f"{damaged}/train: no classes, as they have no images: yellow (1 files)"
    assert others == f"{damaged}/train: left out, as not .png, .jpg, .jpeg: 1 .gif"
    halves = [[bool(reason) for reason in unreadable(images, 0, part, 2)] for part in (0, 1)]
    assert [len(half) for half in halves] == [24, 24]
    assert sum(map(sum, halves)) == 1


def test_folders_within_classes_are_named(images, tmp_path):
    """timm takes the last name for the class, so that those of two classes are joined."""
    for place in ("cat/side", "dog/side", "dog", ""):
        shutil.copytree(images / "train" / "red", tmp_path / "train" / place, dirs_exist_ok=True)
    found = timm.data.create_dataset("", tmp_path, "train")
    assert set(found.reader.class_to_idx) == {"", "dog", "side"}
    places = "., cat/side, dog/side"
    rule = "images outside ROOT/CLASS, whose class is the last folder of their path"
    assert left_out(found) == [f"{tmp_path}/train: {rule}: {places}"]


def test_one_class_is_not_trained(images, tmp_path, rejected):
    for split in ("train", "val"):
        shutil.copytree(images / split / "red", tmp_path / split / "red")
    error = rejected(train_image.main, *flags(tmp_path, tmp_path / "run"))
    assert "--train-split train: must have at least two classes, not only red" in error


def test_skipped_images_are_not_looked_for(damaged, tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "Image", Image)  # which our programs replace
    monkeypatch.setenv("TIMM_DATASET_MAX_RETRIES", "10")
    monkeypatch.setattr(sys, "argv", ["train", *flags(damaged, tmp_path / "run", "--epochs", "2")])
    train_image.main()
    assert (tmp_path / "run" / "last.pth.tar").exists()


def origin_in_log(caplog, images, output, *kwargs) -> str:
    """What the trainer's log says of the weights of a model with these arguments."""
    args = train_image.parser("").parse_args(flags(images, output, "--model", "uit", "--model-kwargs", *SMALL, *kwargs))
    with caplog.at_level("INFO", logger="timm_plugin.train"):
        train_image.Trainer(args, train_image.utils.init_distributed_device(args))
    return caplog.messages[-1].partition("stored parameters, ")[2]


def test_the_log_says_what_is_new_and_what_was_otherwise_in_the_training(images, tmp_path, caplog):
    kwargs = dict(patch_size=4, embed_dim=24, depth=2, num_heads=4, global_pool="avg", drop_rate=0.1)
    weights = timm.create_model("uit", img_size=16, num_classes=3, **kwargs).state_dict()
    trained = argparse.Namespace(model_kwargs=list(kwargs.items()))
    path = tmp_path / "last.pth.tar"
    torch.save(dict(arch="uit", epoch=0, state_dict=weights, args=trained), path)
    said = origin_in_log(caplog, images, tmp_path, f"checkpoint_path={path}")
    assert said == f"weights and head of {path} (trained with global_pool=avg, num_heads=4)"
    same = ["num_heads=4", "global_pool=avg", f"checkpoint_path={path}"]
    assert origin_in_log(caplog, images, tmp_path, *same) == f"weights and head of {path}"
    path = tmp_path / "weights.pth"
    overlay = ["pretrained=True", f"pretrained_cfg_overlay={{'file': '{path}', 'num_classes': 5}}"]
    new_head = "and a new head in place of that for 5 classes"
    torch.save(weights, path)
    assert origin_in_log(caplog, images, tmp_path, *overlay) == f"weights of {path}, {new_head}"
    torch.save({name: tensor for name, tensor in weights.items() if not name.startswith("norm.")}, path)
    some = f"except for 2 of {len(weights)} tensors, which are new (norm.weight, norm.bias)"
    assert origin_in_log(caplog, images, tmp_path, *overlay) == f"weights of {path}, {some}, {new_head}"


def test_the_log_says_which_defaults_the_training_had(images, tmp_path, caplog):
    sizes = dict(patch_size=4, embed_dim=24, depth=2, num_heads=2)
    weights = timm.create_model("uit", img_size=16, num_classes=3, **sizes, pos_drop_rate=0.1).state_dict()
    path, trained = tmp_path / "last.pth.tar", argparse.Namespace(model_kwargs=list(sizes.items()))
    torch.save(dict(arch="uit", epoch=0, state_dict=weights, args=trained), path)
    given = "global_pool=max", "norm_eps=1e-5", "pos_drop_rate=0.1"
    said = origin_in_log(caplog, images, tmp_path, *given, f"checkpoint_path={path}")
    assert said == f"weights and head of {path} (trained with global_pool=token, norm_eps=1e-06)"
    torch.save(dict(state_dict=weights, args=trained), path)  # does not name the model
    assert origin_in_log(caplog, images, tmp_path, *given, f"checkpoint_path={path}") == f"weights and head of {path}"
