"""Trained models and the data they were tested on, by fairseq's and timm's own loaders: what the analyses look into.

A checkpoint of fairseq-train ends in .pt, one of train_image.py in .pth.tar.
"""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import timm
import torch
from fairseq import checkpoint_utils, utils
from timm import data
from timm.utils.checkpoint_saver import load_checkpoint_metadata
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

import fairseq_plugin  # noqa: F401  (registers the models, and allows the types that fairseq's checkpoints hold)
from timm_plugin.convert import untrained


def is_image_model(checkpoint: Path) -> bool:
    """Whether train_image.py has saved it.

    Raises:
        ValueError: if it is no file, or neither fairseq's nor timm's.
    """
    if not checkpoint.is_file():
        raise ValueError(f"{checkpoint}: no such checkpoint")
    if not checkpoint.name.endswith((".pt", ".pth.tar")):
        raise ValueError(f"{checkpoint}: must be a .pt of fairseq-train or a .pth.tar of train_image.py")
    return checkpoint.name.endswith(".pth.tar")


def spread(dataset: Dataset, count: int) -> np.ndarray:
    """Indices spread evenly over a set, as classes and lengths are; not more than it has."""
    return np.linspace(0, len(dataset) - 1, min(count, len(dataset))).astype(int)


class ImageRun:
    """What train_image.py has trained: the model in eval mode, its options, its images.

    Args:
        checkpoint: last.pth.tar or any other of the run.
        data: folder of the images; None for where they were in training.

    Raises:
        ValueError: if the file is no such checkpoint.
    """

    def __init__(self, checkpoint: Path, data: str | None = None):
        if not is_image_model(checkpoint):
            raise ValueError(f"{checkpoint}: must be a checkpoint of train_image.py (.pth.tar)")
        self.args: Namespace = load_checkpoint_metadata(checkpoint)["args"]
        if data is not None:
            self.args.data = data
        self.model: nn.Module = untrained(checkpoint, self.args, checkpoint_path=str(checkpoint)).eval()

    def images(self, count: int, batch: int, training: bool = False) -> DataLoader:
        """Batches of (images (B, 3, height, width) as the model is tested on, classes (B,)), spread over the set.

        Args:
            count: how many images, of all classes.
            batch: B.
            training: of the training set, without augmentation, instead of the test set.
        """
        args = self.args
        dataset = data.create_dataset(args.dataset, args.data, args.train_split if training else args.val_split)
        config = data.resolve_data_config(dict(img_size=args.img_size, crop_pct=args.crop_pct), model=self.model)
        names = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
        dataset.transform = data.create_transform(**{name: config[name] for name in names})
        return DataLoader(Subset(dataset, spread(dataset, count)), batch)


class TextRun:
    """What fairseq-train has trained: the model in eval mode, its layers by side, and its task with the sentences.

    Args:
        checkpoint: any of the run.
        data: the folder that fairseq-preprocess has written; None for where it was in training.

    Raises:
        ValueError: if the file is no such checkpoint.
    """

    def __init__(self, checkpoint: Path, data: str | None = None):
        if is_image_model(checkpoint):
            raise ValueError(f"{checkpoint}: must be a checkpoint of fairseq-train (.pt)")
        overrides = {} if data is None else {"data": data}
        models, settings, self.task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], overrides)
        sides = ("encoder", "decoder")
        self.layers = {side: getattr(settings.model, f"{side}_layers", None) for side in sides}
        self.model: nn.Module = models[0].float().eval()

    def batches(self, count: int, batch: int, split: str = "valid") -> Iterator[dict]:
        """The inputs of the model, for sentences spread over a set; fairseq's `net_input`."""
        self.task.load_dataset(split)
        dataset = self.task.dataset(split)
        for indices in np.array_split(chosen := spread(dataset, count), -(-len(chosen) // batch)):
            yield utils.move_to_cuda(dataset.collater([dataset[index] for index in indices])["net_input"], "cpu")


def progress(checkpoint: Path) -> tuple[str, int]:
    """How far a training was: ("updates", number) of fairseq, ("epochs", number) of train_image.py."""
    if is_image_model(checkpoint):
        return "epochs", load_checkpoint_metadata(checkpoint)["epoch"] + 1
    state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
    return "updates", state["optimizer_history"][-1]["num_updates"]


def weights(checkpoint: Path) -> dict[str, Tensor]:
    """The state dict of a checkpoint of fairseq or timm, the averaged weights where train_image.py keeps them."""
    if is_image_model(checkpoint):
        return timm.models.load_state_dict(str(checkpoint))
    return checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))["model"]


def device() -> torch.device:
    """The accelerator of this machine, or its processor."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
