"""The depth curve of a checkpoint: accuracy, time and agreement with the full depth, for each number of passes.

Usage::

    python -m timm_plugin.depth IMAGES --checkpoint model_best.pth.tar --output depth.csv
    python -m timm_plugin.depth IMAGES --checkpoint uit.pth --model uit

IMAGES is a folder of classes or of splits, as for timm. In a pyramid, a depth is the number of times that every block
of every stage runs.
"""

import argparse
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from timm.data import create_dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader

from recurrence.analysis import depth_curve as curve
from recurrence.analysis.record import require_loops
from recurrence.loop import named_loops
from recurrence.private_torch import bound_caches
from timm_plugin import repairs
from timm_plugin._model import ImageModel
from timm_plugin.checkpoints import load
from timm_plugin.training.data import class_names, preprocessed
from timm_plugin.training.folders import broken_rule
from timm_plugin.training.options import SPLITS, has_device, key_value, other_devices
from timm_plugin.training.user_module import add_user_module


def assignments(model: ImageModel) -> list[curve.Setting]:
    """The depths to try; the last one is the full depth. Raises ValueError if the checkpoint runs at no other depth."""
    loops, step = named_loops(model), model.depth_rules().get("step", 1)
    pyramid = hasattr(model, "stages")
    units = {name: len(loop.blocks) if pyramid else 1 for name, loop in loops.items()}
    possible = set.intersection(*(set(curve.depths(loop, units[name], step)) for name, loop in loops.items()))
    if len(possible) < 2:
        raise curve.only_full_depth(loops)
    return [curve.Setting(str(n), {name: n * unit for name, unit in units.items()}) for n in sorted(possible)]


@torch.no_grad()
def accuracy(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> curve.Evaluation:
    """Top-1 accuracy in percent. The time is the model's alone, without that of reading images."""
    device = next(model.parameters()).device
    seconds, right, predicted = 0.0, [], []
    for images, classes in batches:
        images = images.to(device)
        start = time.perf_counter()
        found = model(images).argmax(-1).tolist()
        seconds += time.perf_counter() - start
        right += [a == b for a, b in zip(found, classes.tolist())]
        predicted += found
    return curve.Evaluation(100 * sum(right) / len(right), seconds / len(right), predicted, right)


def main(arguments: Sequence[str] | None = None) -> None:
    bound_caches()
    repairs.apply()
    repairs.reject_unreadable_images()
    parser = argparse.ArgumentParser(prog="python -m timm_plugin.depth", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("images", type=Path, metavar="IMAGES", help="a folder per class, or a folder per split that holds them")
    help = "a run (its best epoch), a checkpoint, a file of weights, or a folder in timm's format"
    add("--checkpoint", type=Path, required=True, metavar="PATH", help=help)
    add("--model", metavar="NAME", help="the model, if the checkpoint does not name it")
    add("--model-kwargs", nargs="*", default=[], type=key_value, metavar="K=V", help="its options")
    add_user_module(parser)
    add("--split", default="validation", help="which split (default: validation)")
    add("--batch-size", type=int, default=64, metavar="N", help="images at a time (default: 64)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where to run")
    curve.add_options(parser)
    try:
        run(parser.parse_args(arguments))
    except (OSError, ValueError) as error:
        parser.error(str(error))


def run(args: argparse.Namespace) -> None:
    """Runs the command line. Raises ValueError, naming the option and the rule."""
    if not args.checkpoint.exists():
        raise ValueError(f"--checkpoint={args.checkpoint}: no such file")
    if args.batch_size < 1:
        raise ValueError(f"--batch-size={args.batch_size}: must be >= 1")
    if not has_device(args.device):
        raise ValueError(f"--device={args.device}: must be a device of this machine{other_devices(args.device)}")
    model = load(args.checkpoint, args.model, **dict(args.model_kwargs)).to(args.device)
    loops = require_loops(model)
    if not isinstance(model, ImageModel):
        raise ValueError(f"--checkpoint={args.checkpoint}: must be of an ImageModel, not of a {type(model).__name__}")
    if model.in_chans != 3:
        raise ValueError(f"--model-kwargs in_chans={model.in_chans}: must be 3, as images are read in RGB")
    settings = assignments(model)
    batches = read_images(args.images, args.split, model, args.batch_size)

    def accuracy_at(passes: Mapping[str, int]) -> curve.Evaluation:
        model.passes = tuple(passes[name] for name in loops)
        return accuracy(model, batches)

    curve.report(args, settings, accuracy_at, "top-1", higher_is_better=True)


def read_images(folder: Path, split: str, model: nn.Module, batch_size: int = 64) -> Iterable[tuple[Tensor, Tensor]]:
    """The images (B, 3, height, width) of a split, preprocessed for the model, and their classes (B,).

    They are read anew whenever they are iterated over: all images of ImageNet's validation set would take 30 GB.

    Args:
        folder: of classes, or of splits.
        split: one of SPLITS; without effect in a folder of classes.
        model: as :func:`timm_plugin.checkpoints.load` returns it, with the preprocessing of its training.
        batch_size: B.

    Raises:
        ValueError: there is no such folder or split, it has no images, or its classes are not the model's.
    """
    if not folder.exists():
        raise ValueError(f"IMAGES={folder}: no such folder")
    try:
        dataset = create_dataset("", str(folder), split=split)
    except RuntimeError as error:
        raise ValueError(f"IMAGES={folder}: {error}") from None
    folders = [name for name in SPLITS if (folder / name).is_dir()]
    splits = [name for name in folders if any(inner.is_dir() for inner in (folder / name).iterdir())]  # else: classes
    if splits and Path(getattr(dataset.reader, "root", "")) == folder:  # timm falls back to all splits together
        raise ValueError(f"--split={split}: must be one of {', '.join(splits)}")
    if rule := broken_rule(model, class_names(dataset)):
        raise ValueError(f"IMAGES={folder}: {rule}")
    dataset = preprocessed(dataset, model, dict(input_size=(3, *model.patch_embed.img_size)))
    return DataLoader(dataset, batch_size)


if __name__ == "__main__":
    main()
