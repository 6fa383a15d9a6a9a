"""What may be wrong with folders of images: other classes than expected, files left out, images that cannot be read."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image
from timm.data import get_img_extensions
from timm.data.readers.reader_image_folder import ReaderImageFolder
from timm.utils.misc import natural_key
from torch import nn
from torch.utils.data import DataLoader, Dataset

MOST_NAMED = 10


def different_classes(expected: Sequence[str], found: Sequence[str]) -> str | None:
    """How the classes of one set differ from those of another, with their labels; None if they are the same.

    Args:
        expected: a name for each label.
        found: the same, of the other set.
    """
    if list(expected) == list(found):
        return None
    lacks, adds = _missing(expected, found), _missing(found, expected)
    words = [f"{verb} {listed(names)}" for verb, names in (("lacks", lacks), ("also has", adds)) if names]
    return " and ".join(words) or f"has them in another order, {listed(found)}"


def broken_rule(model: nn.Module, classes: Sequence[str]) -> str | None:
    """The rule that images of these classes break, as the end of a message; None if they fit the model."""
    if len(classes) != model.num_classes:
        return f"must have {model.num_classes} classes, like the model, not {len(classes)}"
    difference = different_classes(model.pretrained_cfg.get("label_names") or classes, classes)
    return f"must have the model's classes: {difference}" if difference else None


def _missing(names: Sequence[str], others: Sequence[str]) -> list[str]:
    known = set(others)
    return [f"{label} ({name})" for label, name in enumerate(names) if name not in known]


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def left_out(images: Dataset) -> list[str]:
    """What timm's reader of a folder leaves out or joins without a word, a line each; none for other kinds of sets."""
    reader = getattr(images, "reader", None)
    if not isinstance(reader, ReaderImageFolder):
        return []
    root, classes, known = reader.root, reader.class_to_idx, get_img_extensions()
    lines, empty, deeper, suffixes = [], [], [], Counter[str]()
    for folder, inner, files in os.walk(root, followlinks=True):
        place, found = Path(folder).relative_to(root), [Path(name).suffix.lower() for name in files]
        suffixes.update(suffix for suffix in found if suffix not in known)
        if len(place.parts) != 1 and any(suffix in known for suffix in found):
            deeper.append(str(place))
        if not inner and place.name not in classes:
            empty.append(f"{place.name} ({len(files)} files)")
    if empty:
        lines.append(f"{root}: no classes, as they have no images: {listed(sorted(empty, key=natural_key))}")
    if deeper:
        places = listed(sorted(deeper, key=natural_key))
        lines.append(f"{root}: images outside ROOT/CLASS, whose class is the last folder of their path: {places}")
    if suffixes:
        kinds = [f"{number} {suffix or 'without suffix'}" for suffix, number in suffixes.most_common()]
        lines.append(f"{root}: left out, as not {', '.join(known)}: {listed(kinds)}")
    return lines


class _Reasons(Dataset):
    """For each image of a set of timm, why it cannot be read; None for one that can."""

    def __init__(self, images: Dataset):
        self.reader = images.reader

    def __getitem__(self, index: int) -> str | None:
        try:
            file, *_ = self.reader[index]
            with Image.open(file) as image:
                image.draft(image.mode, (1, 1))  # decodes a JPEG at an eighth of its size, which takes less time
                image.load()
        except Exception as error:  # a damaged file leads Pillow's decoders to errors of any kind
            name = self.reader.filename(index, absolute=True)
            return f"{name}: cannot be read as an image: {error}"
        return None


def unreadable(images: Dataset, workers: int, part: int, parts: int) -> Iterator[str | None]:
    """For each image, what :class:`_Reasons` says. Sets of torchvision are not looked at.

    Args:
        images: a set of timm.
        workers: processes that read.
        part: which share of the images to read, from 0.
        parts: number of shares.
    """
    if not hasattr(images, "reader"):
        return iter(())
    share = range(part, len(images), parts)
    return iter(DataLoader(_Reasons(images), None, sampler=share, num_workers=workers))
