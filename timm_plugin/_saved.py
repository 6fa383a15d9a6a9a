"""What may be read from a run, which a stranger may have sent: the names of options, and the values of each."""

import argparse
import math
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

SIDE, CLASSES, CHANNELS, WORKERS, BATCH = 8192, 1_000_000, 1024, 256, 65_536  # the most
LARGEST = 100_000  # whole number among a model's arguments
LARGEST_SEED = 2**63 - 1
LAYERS, MOST_LAYERS = ("depth", "depths", "layers", "loops"), 1000
DEEPEST = 4  # lists within lists


class Rule(NamedTuple):
    """The values that an option may have: a test, and the message if it fails."""

    holds: Callable[[Any], bool]
    text: str


def _whole(low: int, high: int) -> Rule:
    return Rule(lambda value: is_whole(value) and low <= value <= high, f"must be a whole number in {low} .. {high}")


def is_whole(value: Any) -> bool:
    """Whether it is an integer, and not True or False."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_literal(value: Any, largest: float = math.inf, depth: int = 0) -> bool:
    """Whether it is None, a truth value, a finite number, a text, or a list, tuple or dictionary of these.

    Args:
        value: from a file.
        largest: integer that is allowed.
        depth: of lists around it.
    """
    if isinstance(value, (list, tuple, dict)):
        items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        return depth < DEEPEST and all(is_literal(item, largest, depth + 1) for item in items)
    if is_whole(value):
        return abs(value) <= largest
    return value is None or isinstance(value, (bool, str)) or (isinstance(value, float) and math.isfinite(value))


def are_arguments(value: object) -> bool:
    """Whether it is a dictionary, or a list of pairs, of names and literals."""
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not (isinstance(pairs, list) and is_literal(pairs)):
        return False
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        return False
    return all(is_literal(value, _largest(name)) for name, value in pairs)


def _largest(name: str) -> int:
    """The largest whole number that an argument of a model may have."""
    return MOST_LAYERS if name in LAYERS else LARGEST_SEED if name.endswith(("seed", "updates")) else LARGEST


def _numbers(value: object, most: float) -> bool:
    """Whether it is a list of numbers, each in 0 .. most; not a number is in no range."""
    if not (isinstance(value, (list, tuple)) and value):
        return False
    return all((is_whole(one) or isinstance(one, float)) and 0 <= one <= most for one in value)


def _names(value: object) -> bool:
    return isinstance(value, (list, tuple)) and len(value) <= CLASSES and all(isinstance(name, str) for name in value)


_TEXT = Rule(lambda value: isinstance(value, str) and "\0" not in value, "must be a text")
_COLOURS = Rule(lambda value: _numbers(value, 1) and len(value) <= CHANNELS, "must be numbers in 0 .. 1")
OPTIONS = {
    **dict.fromkeys(["data", "train_split", "val_split", "device", "interpolation", "gp"], _TEXT),
    "dataset": Rule(lambda value: value == "" or is_torchs(value), "must be torch/NAME"),
    "workers": _whole(0, WORKERS),
    "batch_size": _whole(1, BATCH),
    "img_size": _whole(1, SIDE),
    "input_size": Rule(
        lambda value: _numbers(value, SIDE) and len(value) == 3 and all(is_whole(one) and one for one in value),
        f"must be three whole numbers in 1 .. {SIDE}",
    ),
    "num_classes": _whole(0, CLASSES),
    "label_names": Rule(_names, f"must be at most {CLASSES} texts"),
    "in_chans": _whole(1, CHANNELS),
    "crop_pct": Rule(lambda value: _numbers([value], 1) and value > 0, "must be > 0 and <= 1"),
    "mean": _COLOURS,
    "std": _COLOURS,
    "model_kwargs": Rule(
        are_arguments,
        "must be names and values of a model's arguments, "
        f"none but seeds and updates beyond {LARGEST}, or {MOST_LAYERS} layers",
    ),
}
"""All options that are read from a run, whoever reads them."""


def require_held(build: Callable[[], nn.Module], most: int, path: Path) -> None:
    """Raises ValueError if a model has more parameters than its file or folder has bytes; builds it without memory.

    A model that cannot be built so, or not at all, passes: building it tells why.
    """
    try:
        with torch.device("meta"):
            model = build()
    except Exception as error:
        if "overflow" in str(error):  # of a size that no tensor can have
            raise ValueError(f"{path}: its options describe a model that no machine can hold: {error}") from None
        return
    size = sum(parameter.numel() for parameter in model.parameters())
    if size > most:
        rule = f"must be <= {most:,}, for which it has room"
        raise ValueError(f"{path}: its options describe a model of {size:,} parameters: {rule}")


def require_held_tensors(part: Any, file: str | Path) -> None:
    """Raises ValueError for a tensor of more numbers than its file has bytes, which strides of 0 allow.

    Args:
        part: of a checkpoint; dictionaries and lists in any depth, which may hold themselves.
        file: of the checkpoint.
    """
    seen, waiting, most = set(), [part], os.path.getsize(file)
    while waiting:
        one = waiting.pop()
        if isinstance(one, Tensor):
            if one.layout != torch.strided or one.is_meta or one.numel() > most:
                raise ValueError(f"{file}: has {most:,} bytes: does not hold a tensor of shape {tuple(one.shape)}")
        elif isinstance(one, (dict, list, tuple)) and id(one) not in seen:
            seen.add(id(one))
            waiting += one.values() if isinstance(one, dict) else one


def is_torchs(dataset: object) -> bool:
    """Whether timm takes a data set of this name from torchvision; others are downloaded, or run commands."""
    return isinstance(dataset, str) and dataset.lower().startswith("torch/")


def options_of(path: Path, saved: argparse.Namespace, names: Collection[str] = OPTIONS.keys()) -> argparse.Namespace:
    """The options of a run that may be read, without those that were not given; these two are None: img_size, crop_pct.

    Args:
        path: of the checkpoint, for the error.
        saved: all of its options.
        names: of those to read.

    Raises:
        ValueError: names the file, the option and the rule.
    """
    given = {name: value for name, value in vars(saved).items() if name in names and value is not None}
    for name, value in given.items():
        if not OPTIONS[name].holds(value):
            raise ValueError(f"{path}: {name}={str(value)[:100]!r}: {OPTIONS[name].text}")
    return argparse.Namespace(**{"img_size": None, "crop_pct": None, **given})
