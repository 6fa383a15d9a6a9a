"""Print the accuracy of a run of timm_plugin.train after its last epoch, and the time per image, as JSON.

Usage::

    python -m timm_plugin.accuracy RUN

The images are those of the training's --val-split, preprocessed as in the training, on its --device or, if this machine
does not have it, on another of that type or the CPU; in float32, even after a training with --amp.
"""

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from recurrence.private_torch import bound_caches
from recurrence.removed import reject_options
from timm_plugin import repairs
from timm_plugin.checkpoints import load, options_in
from timm_plugin.depth import accuracy
from timm_plugin.training.data import datasets, evaluation_loader
from timm_plugin.training.folders import broken_rule
from timm_plugin.training.options import has_device
from timm_plugin.training.user_module import add_user_module


def measured(run: Path) -> dict[str, float]:
    """Top-1 accuracy in %, and seconds for all images, of a run of timm_plugin.train.

    Raises:
        ValueError: the checkpoint cannot be read or is of another trainer, or the images are gone or of other classes.
    """
    checkpoint = run / "last.pth.tar"
    if not checkpoint.exists():
        raise ValueError(f"RUN={run}: has no last.pth.tar")
    args = options_in(checkpoint)
    model = load(checkpoint)
    args.distributed = False  # as the training may have been
    try:
        devices = args.device, args.device.partition(":")[0], "cpu"
        device = torch.device(next(filter(has_device, devices)))
        *sets, classes = datasets(args)
        if rule := broken_rule(model, classes):
            raise ValueError(f"RUN={run}: its images {rule}")
        images = evaluation_loader(args, model.to(device), sets[1], device)
    except AttributeError as error:
        raise ValueError(f"RUN={run}: must be the --output of timm_plugin.train ({error})") from None
    accuracy(model, itertools.islice(images, 1))  # also allocates and loads kernels, which should count for no image
    top1, seconds, *_ = accuracy(model, images)
    return {"top1": top1, "seconds": seconds * len(sets[1])}


def main(arguments: Sequence[str] | None = None) -> None:
    bound_caches()
    repairs.apply()
    repairs.reject_unreadable_images()
    parser = argparse.ArgumentParser("python -m timm_plugin.accuracy", description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, metavar="RUN", help="--output of timm_plugin.train")
    add_user_module(parser)
    reject_options(parser, {"eight_bits": "export the model, as to ONNX, and quantise it there"})
    args = parser.parse_args(arguments)
    try:
        print(json.dumps(measured(args.run)))
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
