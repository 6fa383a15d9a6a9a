"""Data of the image trainer: the sets of images, their augmentation and timm's loaders."""

import argparse
import multiprocessing
import tarfile
from collections.abc import Iterable
from typing import Any

import torch
from PIL import Image
from timm import data
from timm.data.transforms import str_to_interp_mode
from torch import nn
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from timm_plugin.repairs import open_image
from timm_plugin.training.folders import different_classes
from timm_plugin.training.options import TRIVIAL, reject


def datasets(args: argparse.Namespace) -> tuple[Dataset, Dataset, list[str]]:
    """The training set, the evaluation set and the names of their classes, in the order of the labels.

    Raises:
        OptionError: there are no images, a tar file is damaged, or the two sets differ in classes.
    """
    sets = []
    for name in ("train_split", "val_split"):
        split = getattr(args, name)
        try:
            sets.append(data.create_dataset(args.dataset, args.data, split))
            if isinstance(sets[-1], ImageFolder):  # whose own loader turns 16-bit greys white
                sets[-1].loader = open_image
        except (AssertionError, RuntimeError, ValueError, tarfile.TarError) as error:
            if args.dataset and not isinstance(error, ValueError):  # which torchvision raises for a split it lacks
                reject("dataset", args.dataset, f"not in {args.data}: {error}")
            reject(name, split, f"cannot be read in {args.data}: {str(error) or 'no such folder'}")
    classes, others = map(class_names, sets)
    if difference := different_classes(classes, others):
        reject("val_split", args.val_split, f"must hold the classes of {args.train_split}: {difference}")
    return *sets, classes


def class_names(dataset: Dataset) -> list[str]:
    """The names of the classes of a set of images, in the order of the labels."""
    reader = getattr(dataset, "reader", dataset)
    for name in ("class_name_to_idx", "wnid_to_idx", "class_to_idx"):  # timm's tar reader has the first
        if found := getattr(reader, name, None):  # ImageNet has the second; its third has the label of each synonym
            return sorted(found, key=found.get)
    return list(reader.all_categories)  # iNaturalist


def preprocessed(dataset: Dataset, model: nn.Module, given: dict[str, Any]) -> Dataset:
    """The set with timm's preprocessing for evaluation: images (C, height, width), float32.

    The loaders of :func:`make_loaders` compute the same in another order, which changes the last bit of some pixels.

    Args:
        dataset: of timm; it is changed.
        model: its preprocessing is used for what is not given.
        given: as timm's `resolve_data_config` takes it, such as `img_size` and `crop_pct`.
    """
    dataset.transform = data.create_transform(**data.resolve_data_config(given, model=model))
    return dataset


def with_torchvision(args: argparse.Namespace, from_timm: transforms.Compose, config: dict) -> transforms.Compose:
    """timm's training transforms with torchvision's cropping (--resize) and augmentation (--aa trivial).

    Raises:
        OptionError: --resize is smaller than the images.
    """
    steps, sides = list(from_timm.transforms), config["input_size"][1:]
    if args.resize:
        if args.resize < max(sides):
            reject("resize", args.resize, f"must be >= {max(sides)}, the side of the images")
        resize = transforms.Resize(args.resize, str_to_interp_mode(config["interpolation"]))
        steps[0] = transforms.Compose([resize, transforms.RandomCrop(sides)])
    if args.aa == TRIVIAL:
        steps.insert(-1, transforms.TrivialAugmentWide())
    return transforms.Compose(steps)


def in_colour(args: argparse.Namespace, transform: transforms.Compose) -> transforms.Compose:
    """Transforms that begin with RGB for sets of torchvision; timm's own readers convert their images."""
    return transforms.Compose([_to_rgb, transform]) if args.dataset else transform


def _to_rgb(image: Image.Image) -> Image.Image:
    return image if image.mode == "RGB" else image.convert("RGB")


def augmentation(args: argparse.Namespace) -> dict[str, object]:
    """timm's augmentation of training images, as arguments of its `create_loader`."""
    trivial = args.aa == TRIVIAL
    collate = None
    if args.mixup or args.cutmix:
        collate = data.FastCollateMixup(
            args.mixup, args.cutmix, label_smoothing=args.smoothing, num_classes=args.num_classes
        )
    return dict(
        no_aug=args.no_aug,
        scale=args.scale,
        hflip=args.hflip,
        color_jitter=None if trivial else args.color_jitter,
        auto_augment=None if trivial else args.aa,
        num_aug_repeats=args.aug_repeats,
        re_prob=args.reprob,
        re_mode="pixel",
        collate_fn=collate,
    )


def make_loaders(args: argparse.Namespace, model: nn.Module, sets: list[Dataset], device: torch.device) -> list:
    """timm's loaders for training and evaluation.

    Raises:
        OptionError: --aug-repeats in a single process, or as :func:`with_torchvision` does.
    """
    if args.aug_repeats and not args.distributed:
        reject("aug_repeats", args.aug_repeats, "must be 0 without torchrun; timm repeats across processes only")
    settings = _loading(args, model, device)
    training = data.create_loader(sets[0], is_training=True, **augmentation(args), **settings)
    sets[0].transform = in_colour(args, with_torchvision(args, sets[0].transform, settings))
    return [training, evaluation_loader(args, model, sets[1], device)]


def evaluation_loader(args: argparse.Namespace, model: nn.Module, images: Dataset, device: torch.device) -> Iterable:
    """timm's loader for evaluation; of a training's options it needs `dataset` and those of :func:`_loading`."""
    loader = data.create_loader(images, **_loading(args, model, device))
    images.transform = in_colour(args, images.transform)
    return loader


def _loading(args: argparse.Namespace, model: nn.Module, device: torch.device) -> dict[str, Any]:
    """Arguments of timm's `create_loader`: the model's preprocessing, at the size of this run, and how to load."""
    config = data.resolve_data_config(dict(img_size=args.img_size, crop_pct=args.crop_pct), model=model)
    return dict(
        **config,
        batch_size=args.batch_size,
        # Only forks have the repairs; other workers would turn 16-bit greys white.
        num_workers=args.workers if multiprocessing.get_start_method() == "fork" else 0,
        distributed=args.distributed,
        device=device,
        pin_memory=device.type == "cuda",
        persistent_workers=False,  # their random state would carry over to the next epoch, but not into a resumed run
    )
