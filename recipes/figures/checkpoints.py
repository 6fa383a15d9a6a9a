"""Load trained models and their data for the figures, with fairseq's and timm's own loaders.

Checkpoints of fairseq-train end in .pt, those of train_image.py in .pth.tar.
"""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from fairseq import checkpoint_utils
from timm import data
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

import fairseq_plugin  # noqa: F401  (registers the models, and allows the types that fairseq's checkpoints hold)
from timm_plugin import repairs
from timm_plugin._saved import options_of
from timm_plugin.checkpoints import load, metadata_of
from timm_plugin.training.data import preprocessed


def is_image_model(checkpoint: Path) -> bool:
    """Whether the checkpoint was written by train_image.py rather than fairseq-train.

    Raises:
        ValueError: if the file does not exist, or neither trainer writes files of that name.
    """
    if not checkpoint.is_file():
        raise ValueError(f"{checkpoint}: no such checkpoint")
    if not checkpoint.name.endswith((".pt", ".pth.tar")):
        raise ValueError(f"{checkpoint}: must be a .pt of fairseq-train or a .pth.tar of train_image.py")
    return checkpoint.name.endswith(".pth.tar")


def spread(dataset: Dataset, count: int) -> np.ndarray:
    """Up to `count` indices spread evenly over a data set, which may be sorted by class or by length."""
    return np.linspace(0, len(dataset) - 1, min(count, len(dataset))).astype(int)


class ImageRun:
    """A run of train_image.py: the model in eval mode, its options and its images.

    Args:
        checkpoint: last.pth.tar or any other checkpoint of the run.
        data: folder of the images; by default the folder used in training.

    Raises:
        ValueError: if the file is not a checkpoint of train_image.py.
    """

    def __init__(self, checkpoint: Path, data: str | None = None):
        repairs.apply()
        repairs.reject_unreadable_images()
        if not is_image_model(checkpoint) or "args" not in (found := metadata_of(checkpoint)):
            raise ValueError(f"{checkpoint}: must be a checkpoint of train_image.py (.pth.tar)")
        self.args: Namespace = options_of(checkpoint, found["args"])
        if data is not None:
            self.args.data = data
        self.model: nn.Module = load(checkpoint)

    def images(self, count: int, batch: int, training: bool = False) -> DataLoader:
        """Batches of images (B, 3, height, width), preprocessed as for evaluation, and their classes (B,).

        Args:
            count: number of images, spread evenly over the set.
            batch: B.
            training: take them from the training set, without augmentation, instead of the test set.

        Raises:
            ValueError: if the folder of the images does not exist.
        """
        args = self.args
        if not Path(args.data).exists():
            raise ValueError(f"{args.data}: no such folder of images; name it by --data")
        dataset = data.create_dataset(args.dataset, args.data, args.train_split if training else args.val_split)
        dataset = preprocessed(dataset, self.model, dict(img_size=args.img_size, crop_pct=args.crop_pct))
        return DataLoader(Subset(dataset, spread(dataset, count)), batch)


class TextRun:
    """A run of fairseq-train: the model in eval mode, and the task that holds the sentences.

    Args:
        checkpoint: any checkpoint of the run.
        data: folder written by fairseq-preprocess; by default the folder used in training.

    Raises:
        ValueError: if the file is not a checkpoint of fairseq-train.
    """

    def __init__(self, checkpoint: Path, data: str | None = None):
        if is_image_model(checkpoint):
            raise ValueError(f"{checkpoint}: must be a checkpoint of fairseq-train (.pt)")
        overrides = {} if data is None else {"data": data}
        models, _, self.task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], overrides)
        self.model: nn.Module = models[0].float().eval()

    def batches(self, count: int, batch: int, split: str = "valid") -> Iterator[dict]:
        """Inputs of the model (fairseq's `net_input`) for `count` sentences spread evenly over the set."""
        self.task.load_dataset(split)
        dataset = self.task.dataset(split)
        for indices in np.array_split(chosen := spread(dataset, count), -(-len(chosen) // batch)):
            yield dataset.collater([dataset[index] for index in indices])["net_input"]


def device() -> torch.device:
    """The accelerator of this machine, or else the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
