"""The image trainer rejects wrong options by name; the commands in recipes' README are accepted."""

import importlib
import re
import shlex
import struct
import sys
from pathlib import Path

import pytest
import timm.task
import torch

from tests.support import cli, guide
from tests.support.image_training import COLOURS, MODEL, SMALL, TEACHER, flags
from timm_plugin import train
from timm_plugin.training import build, data, options

UIT = ["--model", "uit", "--model-kwargs", *SMALL]
WEIGHTS = str(cli.REPOSITORY / "timm_plugin" / "weights" / "sret_nano.cifar10.safetensors")
PASS_LOSS = [*UIT, "--pass-loss", "1"]
REJECTED = {
    "--hflip 2.0: must be in 0 .. 1": ["--hflip", "2"],
    "--clip-grad 0.0: must be > 0 and finite": ["--clip-grad", "0"],
    "--clip-grad inf: must be > 0 and finite": ["--clip-grad", "inf"],
    "--workers -1: must be a whole number in 0 .. 256": ["--workers", "-1"],
    "--mixup -1.0: must be >= 0 and finite": ["--mixup", "-1"],
    "--batch-size 25: must be <= 24, the images per process": ["--batch-size", "25", "--grad-accum-steps", "2"],
    "--grad-accum-steps 49: must be <= 48, the images per process": ["--grad-accum-steps", "49"],
    "--aug-repeats 3: must be 0 without torchrun": ["--aug-repeats", "3"],
    "--resize 15: must be >= 16, the side of the images": ["--resize", "15"],
    "--aa trivial: must not be given with --no-aug": ["--aa", "trivial", "--no-aug"],
    "--reprob 0.5: must not be given with --no-aug": ["--reprob", "0.5", "--no-aug"],
    "--scale [0.5, 1.0]: must not be given with --no-aug": ["--scale", "0.5", "1", "--no-aug"],
    "--hflip 0.9: must not be given with --no-aug": ["--hflip", "0.9", "--no-aug"],
    "--color-jitter 0.9: must not be given with --no-aug": ["--color-jitter", "0.9", "--no-aug"],
    "--smoothing 0.2: must be 0 with --teacher": [*TEACHER, "--smoothing", "0.2"],
    "--dataset cifar10: must be torch/NAME": ["--dataset", "cifar10"],
    "--dataset torch/cifar10: not in ": ["--dataset", "torch/cifar10"],
    "--train-split training: cannot be read in ": ["--dataset", "torch/imagenet", "--train-split", "training"],
    "--device abacus: must be a device of this machine": ["--device", "abacus"],
    "--model vit_enormous: must be a registered model": ["--model", "vit_enormous"],
    "--model sret_t.tag: must be a registered model": ["--model", "sret_t.tag"],
    "--teacher sret_nano.tag: must be a registered model": ["--teacher", "sret_nano.tag"],
    "--scale [0.5, 0.1]: must be two shares": ["--scale", "0.5", "0.1"],
    "--crop-pct 1.5: must be > 0 and <= 1": ["--crop-pct", "1.5"],
    "--model-ema-decay 1.0: must be > 0 and < 1": ["--model-ema-decay", "1"],
    "--opt AdaHessian: must be an optimiser of timm other than adahessian": ["--opt", "AdaHessian"],
    "--aa rand-m9.5: must be trivial, or a policy of timm such as": ["--aa", "rand-m9.5"],
    "--seed -1: must be in 0 .. 32767": ["--seed", "-1"],
    "--train-split practice: must be a folder or a .tar file in ": ["--train-split", "practice"],
    "--val-split test: must be a folder or a .tar file in ": ["--val-split", "test"],
    "--teacher-checkpoint nothing.pth: must be a file": [*TEACHER, "--teacher-checkpoint", "nothing.pth"],
    f"--teacher-checkpoint {__file__}: not a checkpoint": [*TEACHER, "--teacher-checkpoint", __file__],
    "--temperature 2.0: needs --teacher": ["--temperature", "2"],
    "--distillation hard: needs --teacher": ["--distillation", "hard"],
    "--temperature 2.0: must be 1 with --distillation hard": [
        *(*TEACHER, "--distillation", "hard", "--temperature", "2"),
    ],
    "--warmup-epochs 3.0: must be < --epochs 3": ["--warmup-epochs", "3"],
    "--warmup-epochs 5.0 (its default): must be < --epochs 3": ["--warmup-epochs", "5"],
    "--min-lr 0.5: must be <= --lr 0.1": ["--lr", "0.1", "--min-lr", "0.5"],
    "--batch-size 3: must be even with Mixup or CutMix": ["--batch-size", "3", "--cutmix", "1"],
    "--model-kwargs: 'depth': must be key=value": ["--model-kwargs", "depth"],
    "--model-kwargs img_size: must be given by --img-size": ["--model-kwargs", "img_size=8"],
    "--teacher-kwargs img_size: must be given by --img-size": [*TEACHER, "--teacher-kwargs", "img_size=8"],
    "--model-kwargs features_only=true: must not be given": ["--model-kwargs", "features_only=true"],
    "--teacher-kwargs num_classes=3: must not be given": [*TEACHER, "--teacher-kwargs", "num_classes=3"],
    "--model-kwargs global_pool=: must not be given": ["--model-kwargs", "global_pool="],
    "--model-kwargs in_chans=1: must be 3, as images are read in RGB": ["--model-kwargs", "in_chans=1"],
    "--teacher-kwargs in_chans=1: must be 3, as images are read in RGB": [
        *(*TEACHER, "--teacher-checkpoint", WEIGHTS, "--teacher-kwargs", "in_chans=1"),
    ],
    "id you mean 'depth'?": ["--model-kwargs", "dept=3"],  # Python 3.13 asks, too
    "nothing.pth', 'img_size': 16}: must name files that exist": ["--model-kwargs", "checkpoint_path=nothing.pth"],
    "--model sret_nan: must be a registered model; did you mean 'sret_nano'?": ["--model", "sret_nan"],
    "--depth-range: all: must be MIN-MAX, such as 1-6": ["--depth-range", "all"],
    "--depth-range 5-2: must be MIN-MAX": [*UIT, "--depth-range", "5-2"],
    "--depth-range (1, 2): needs a looped model of timm_plugin": ["--depth-range", "1-2"],
    "error: --loop-after-updates=9: was removed: train with all passes": ["--loop-after-updates", "9"],
    "--pass-loss 1.0: must not be given with --teacher": [*PASS_LOSS, *TEACHER],
    "--pass-loss 0.5: must not be given with --teacher": [*UIT, "pass_loss=0.5", *TEACHER],
    "--teacher vit_tiny_patch16_224: must not be given with uit": [*UIT, "--mixed-depth", *TEACHER],
    "--teacher sret_nano: its weights are for 10 classes, the images have 3: needs": ["--teacher", "sret_nano"],
    "--workers 300: must be a whole number in 0 .. 256": ["--workers", "300"],
    "none but seeds and updates beyond 100000, or 1000 layers": ["--model-kwargs", "depth=1001"],
    "--model-kwargs pretrained_cfg_overlay={file: x}: must be a dictionary: put the whole argument in quotes": [
        *("--model-kwargs", "pretrained_cfg_overlay={file: x}"),
    ],
    "--amp: invalid choice: 'fp8'": ["--amp", "fp8"],
    "--pretrained: is an option of timm's train.py; here, give --model-kwargs pretrained=True": ["--pretrained"],
    "--drop-path=0.1: is an option of timm's train.py; here, give --model-kwargs drop_path_rate=": [
        "--drop-path",
        "0.1",
    ],
    "--train-split trian: must be one of train, training, val": ["--dataset", "torch/mnist", "--train-split", "trian"],
    "dim should be divisible by num_heads": ["--model-kwargs", "num_heads=5"],
}


@pytest.mark.parametrize(("message", "more"), REJECTED.items(), ids=[" ".join(more) for more in REJECTED.values()])
def test_a_wrong_option_is_named_before_any_work(images, tmp_path, rejected, message, more):
    assert message in rejected(train.main, *flags(images, tmp_path / "run", *more))
    assert not (tmp_path / "run").exists()


def test_a_wrong_head_and_a_file_as_output_name_the_remedy(images, tmp_path, rejected):
    file = tmp_path / "weights.pth"
    sizes = dict(patch_size=4, embed_dim=24, depth=2, num_heads=2, img_size=16)
    torch.save(timm.create_model("vit_tiny_patch16_224", num_classes=5, **sizes).state_dict(), file)
    words = flags(images, tmp_path / "run", "--model-kwargs", *SMALL, f"checkpoint_path={file}")
    remedy = "for 5 classes; for a new head, give --model-kwargs pretrained=True \"pretrained_cfg_overlay={'file': "
    assert f"{remedy}'{file}'" in rejected(train.main, *words)
    assert f"--output {file}: must be a folder, not a file" in rejected(train.main, *flags(images, file))


def test_a_timm_without_what_the_trainer_needs_is_rejected_by_its_version(monkeypatch):
    monkeypatch.delattr(timm.task, "evaluation_sample_limit")
    monkeypatch.delitem(sys.modules, "timm_plugin.task")
    with pytest.raises(ImportError, match=f"^timm {re.escape(timm.__version__)}: must be 1.0.31 or later"):
        importlib.import_module("timm_plugin.task")


def test_weights_that_are_not_downloaded_are_not_called_missing_files(images, tmp_path, rejected, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "{'img_size': 16}: An error happened" in rejected(train.main, *flags(images, tmp_path / "run", *TEACHER))


def test_a_device_is_an_accelerator_that_is_there_or_the_processor(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert all(map(options.has_device, ["cpu", "cuda", "cuda:0", "cuda:1"]))
    assert not any(map(options.has_device, ["cuda:2", "xpu", "meta", "abacus", ""]))


def test_every_rule_has_a_case():
    tried = [(message.partition(" ")[0], message.rpartition(": ")[2]) for message in REJECTED]
    options_of: dict[str, set[str]] = {}
    for name, (_, rule) in options.RULES.items():
        options_of.setdefault(rule, set()).add(f"--{name.replace('_', '-')}")
    for rule, names in options_of.items():
        assert any(option in names and words and rule.startswith(words) for option, words in tried), rule


def test_arguments_of_the_model_add_up_and_the_last_of_each_counts():
    given = ["data", *MODEL, "--output", "run", "--model-kwargs", "depth=7"]
    args = options.parser("").parse_args(given)
    assert dict(args.model_kwargs) == dict(patch_size=4, embed_dim=24, depth=7, num_heads=2)


def test_the_readmes_commands_parse():
    text = (cli.REPOSITORY / "recipes" / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    calls = [line.split("recipes/train_image.py")[1] for line in text.splitlines() if "recipes/train_image.py " in line]
    assert len(calls) == 4
    for call in calls:
        args = options.parser("").parse_args(shlex.split(call))
        assert timm.is_model(args.model)
        assert args.teacher is None or timm.is_model(args.teacher)


def test_one_folder_of_classes_is_split_as_the_page_says(images, tmp_path, rejected, monkeypatch):
    error = rejected(train.main, *flags(images / "train", tmp_path / "run"))
    assert f"--train-split train: must be a folder or a .tar file in {images}/train; for one folder of classes" in error
    assert (cli.REPOSITORY / "docs" / "images.md").read_text(encoding="utf-8").count("\n### Split your images\n") == 1
    (tmp_path / "flowers").symlink_to(images / "train")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(guide.example("images.md", "def split"), names)
    rows = [[str(path), path.parent.name] for path in images.glob("val/*/*")]  # as csv.reader gives them
    names["split"](rows, "table")
    for folder, counts in {"data": {"train": 45, "val": 3}, "table": {"train": 15}}.items():
        found = {split: len(list(Path(folder, split).glob("*/*.png"))) for split in counts}
        assert found == counts
    *_, classes = data.datasets(options.parser("").parse_args(flags(tmp_path / "data", tmp_path / "run")))
    assert classes == list(COLOURS)


def test_the_validation_set_must_have_the_training_classes(images, tmp_path, rejected):
    (tmp_path / "train").symlink_to(images / "train")
    (tmp_path / "val" / "blue").mkdir(parents=True)
    (tmp_path / "val" / "blue" / "0.png").symlink_to(images / "val" / "blue" / "0.png")
    error = rejected(train.main, *flags(tmp_path, tmp_path / "run"))
    assert "--val-split val: must hold the classes of train: lacks 1 (green), 2 (red)" in error


@pytest.mark.parametrize("dataset", ["imagenet", "inaturalist"])
def test_the_classes_of_sets_of_torchvision_are_those_of_their_labels(images, tmp_path, dataset):
    """Of ImageNet's, most have several names, and two of them the same; iNaturalist's have a number and seven ranks."""
    names = {"blue": ("crane",), "green": ("a", "b", "c"), "red": ("crane", "d")}
    torch.save((names, []), tmp_path / "meta.bin")
    splits = ("train", "val") if dataset == "imagenet" else ("2021_train", "2021_valid")
    for split, theirs in zip(("train", "val"), splits):
        (tmp_path / theirs).mkdir()
        for number, colour in enumerate(sorted(names)):
            folder = colour if dataset == "imagenet" else f"{number:05}_K_P_C_O_F_G_{colour}"
            (tmp_path / theirs / folder).symlink_to(images / split / colour)
    args = options.parser("").parse_args(flags(tmp_path, tmp_path / "run", "--dataset", f"torch/{dataset}"))
    training, _, classes = data.datasets(args)
    assert len(classes) == 3
    assert {label for _, label in training} == {0, 1, 2}


def test_grey_images_of_sets_of_torchvision_are_read_in_colour(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for split in ("train", "t10k"):
        pixels, labels = bytes(range(64)) * 20, bytes(range(10)) * 2
        (raw / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, 20, 8, 8) + pixels)
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 20) + labels)
    more = ("--dataset", "torch/mnist", "--batch-size", "4", "--workers", "0")
    args = options.parser("").parse_args(flags(tmp_path, tmp_path / "run", *more))
    args.distributed, args.num_classes = False, 10
    *sets, classes = data.datasets(args)
    assert len(classes) == 10
    for loader in data.make_loaders(args, build.build("model", args, num_classes=10), sets, torch.device("cpu")):
        images, _ = next(iter(loader))
        assert images.shape == (4, 3, 16, 16)


def test_a_split_without_images_is_named(images, tmp_path, rejected):
    (tmp_path / "train").symlink_to(images / "train")
    (tmp_path / "val").mkdir()
    error = rejected(train.main, *flags(tmp_path, tmp_path / "run"))
    assert f"--val-split val: cannot be read in {tmp_path}: Found 0 images" in error
    for name, content in (("empty.tar", b""), ("other.tar", b"not an archive\n")):
        (tmp_path / name).write_bytes(content)
        error = rejected(train.main, *flags(tmp_path, tmp_path / "run", "--train-split", name))
        assert f"--train-split {name}: cannot be read in {tmp_path}: " in error
