"""Trainings on generated images: their commands, trainers, loaders, checkpoints and tables."""

import csv
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timm.utils import init_distributed_device
from timm.utils.checkpoint_saver import load_checkpoint_metadata

from tests.support import cli
from timm_plugin.train import Trainer, parser
from timm_plugin.training import build, data, options

SCRIPT = cli.REPOSITORY / "recipes" / "train_image.py"
KILLED = Path(__file__).with_name("killed_training.py")
COLOURS = {"blue": (40, 40, 200), "green": (40, 200, 40), "red": (200, 40, 40)}
IMAGES_PER_CLASS = {"train": 16, "val": 5}
SIDE = 16  # of an image, in pixels
TEACHER = ["--teacher", "vit_tiny_patch16_224"]
IMPORTABLE = {"PYTHONPATH": str(cli.REPOSITORY)}
SMALL = ["patch_size=4", "embed_dim=24", "depth=2", "num_heads=2"]
MODEL = ["--model", "vit_tiny_patch16_224", "--model-kwargs", *SMALL, "--img-size", str(SIDE)]
ELASTIC = ["--model", "ringformer_vit", "--model-kwargs", *SMALL, "depth=4", "--depth-range", "1-4"]
TRAINING = ["--epochs", "3", "--warmup-epochs", "1", "--batch-size", "12", "--workers", "0", "--device", "cpu"]


def write_images(folder: Path) -> None:
    """Write noisy squares of three colours, SPLIT/COLOUR/NUMBER.png."""
    chance = np.random.default_rng(0)
    for split, count in IMAGES_PER_CLASS.items():
        for name, colour in COLOURS.items():
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.add(colour, chance.normal(0, 90, (SIDE, SIDE, 3))).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")


def flags(images: Path, output: Path, *more) -> list[str]:
    """The script's arguments; `more` overrides the defaults, and all arguments of the model if it has any."""
    model = (
        MODEL if "--model-kwargs" not in more else [word for word in MODEL if word not in ("--model-kwargs", *SMALL)]
    )
    return [str(word) for word in (images, *model, *TRAINING, "--output", output, *more)]


def train(images: Path, output: Path, *more, **options) -> str:
    """Run the script and return what it printed."""
    return cli.python(SCRIPT, *flags(images, output, *more), **options)


def checkpoint(output: Path, name: str = "last") -> dict:
    """A checkpoint of a run, read without executing pickled code."""
    return load_checkpoint_metadata(output / f"{name}.pth.tar")


def table(output: Path) -> list[dict]:
    """The rows of a run's summary.csv, without times."""
    with (output / "summary.csv").open() as file:
        return [{key: value for key, value in row.items() if key != "train_seconds"} for row in csv.DictReader(file)]


def trainer_of(images: Path, output: Path, *more) -> Trainer:
    """The trainer of a run with these options."""
    args = parser("").parse_args(flags(images, output, *more))
    return Trainer(args, init_distributed_device(args))


def loaders(images: Path, *more) -> list:
    """The two loaders of a run with these options."""
    args = options.parser("").parse_args(flags(images, images / "none", *more))
    args.distributed = torch.distributed.is_initialized()
    *sets, names = data.datasets(args)
    args.num_classes = len(names)
    return data.make_loaders(args, build.build("model", args), sets, torch.device("cpu"))
