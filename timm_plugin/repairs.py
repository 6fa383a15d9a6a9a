"""Fixes for data loss and random failures in timm. Each is an idempotent function.

They replace names inside timm's modules, for all models of a program, so a program must ask for them with
`timm_plugin.repairs.apply()`; importing the plugin does not. `timm_plugin.run` and this plugin's own programs do. Names
that a version of timm does not have are skipped.
"""

import contextlib
import os
import pickle
import re
import shutil
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import safetensors.torch
from PIL import Image
from timm.data import auto_augment, dataset
from timm.data.readers import reader_image_folder, reader_image_in_tar, reader_image_tar, reader_wds
from timm.models import _helpers
from timm.utils.checkpoint_saver import CheckpointSaver
from timm.utils.misc import natural_key
from torch import Tensor

from recurrence import files
from recurrence.greys import eight_bits, has_16_bits
from timm_plugin._compat import load_checkpoint_metadata
from timm_plugin._saved import require_held_tensors

SKIPPING = "TIMM_DATASET_MAX_RETRIES"  # timm's variable: the number of unreadable images that may be skipped
REMEDY = f"remove what is damaged, or set {SKIPPING}=10 to use the next image instead, after up to 9 in a row"


def apply() -> None:
    """Apply every fix."""
    for repair in (atomic_checkpoints, ranked_checkpoints, grey_images, black_images, checkpoint_errors, class_order):
        repair()


def atomic_checkpoints() -> None:
    """Replace checkpoints by a single rename, and report write errors.

    timm removes the old file first: a kill in between leaves `last.pth.tar` or `model_best.pth.tar` missing.
    """
    if CheckpointSaver._save is not _save:
        _save.__wrapped__, CheckpointSaver._save = CheckpointSaver._save, _save
    CheckpointSaver._replace = staticmethod(files.replace)
    CheckpointSaver._duplicate = staticmethod(files.duplicate)


def _save(self: CheckpointSaver, path: str, *args, **kwargs) -> None:
    files.remove(path)  # of a killed run, or a link, through which nothing is written
    try:
        _save.__wrapped__(self, path, *args, **kwargs)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch reports a failed write as a RuntimeError without the cause
        with contextlib.suppress(OSError):
            files.remove(path)
        last = os.path.join(os.path.dirname(path), f"last{self.extension}")
        kept = f"{last} is intact" if os.path.exists(last) else "there is no checkpoint yet"
        free = shutil.disk_usage(os.path.dirname(path) or ".").free
        raise OSError(f"{path}: cannot be written, the disk has {free:,} bytes left; {kept}") from error


def ranked_checkpoints() -> None:
    """Rank the last epoch's checkpoint if the run was killed between saving and ranking it; timm forgets it.

    And check the names of earlier checkpoints, which timm takes from the file, and later deletes.
    """
    load = getattr(CheckpointSaver, "load_state_dict_from_checkpoint", None)
    if load is None or load is _load_and_rank:
        return
    _load_and_rank.__wrapped__ = load
    CheckpointSaver.load_state_dict_from_checkpoint = _load_and_rank


def _check_history(saver: CheckpointSaver, path: str | Path) -> None:
    """Raises ValueError if a checkpoint names other files than checkpoints of its folder, or ranks them by no numbers.

    timm joins these names to the folder, and deletes the files when better ones come.
    """
    checkpoint = load_checkpoint_metadata(path)
    history = checkpoint.get("saver") if isinstance(checkpoint, dict) else None
    if history is None:
        return
    own = re.compile(re.escape(saver.save_prefix) + r"-\d+" + re.escape(saver.extension))
    try:
        names, metrics = zip(*history["checkpoint_files"]) if history["checkpoint_files"] else ((), ())
        epochs, last = (history["best_epoch"], history["pending"][0]), history["pending"][1]
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: has no history of checkpoints that can be read ({error!r})") from None
    for name in names:
        if not (isinstance(name, str) and own.fullmatch(name)):
            rule = f"must name checkpoints of its own folder, such as {saver.save_prefix}-0{saver.extension}"
            raise ValueError(f"{path}: checkpoint_files={name!r}: {rule}; nothing was removed")
    for name, values, kind in (
        ("epoch", epochs, int),
        ("metric", (*metrics, history["best_metric"], last), (int, float)),
    ):
        for value in values:
            if not (value is None or isinstance(value, kind)):
                raise ValueError(f"{path}: {name}={value!r}: must be a number")


def _load_and_rank(self: CheckpointSaver, path: str | Path) -> bool:
    _check_history(self, path)
    found = _load_and_rank.__wrapped__(self, path)
    epoch, metric = load_checkpoint_metadata(path)["saver"]["pending"] if found else (None, None)
    if metric is None:
        return found
    kept, name = self.checkpoint_files, self._checkpoint_path(epoch)
    ranks = len(kept) < self.max_history or kept[-1][1] is None or self.cmp(metric, kept[-1][1])
    if ranks and name not in [file for file, _ in kept]:
        self._cleanup_checkpoints(len(kept) >= self.max_history)
        self._duplicate(str(path), name)
        self._track_checkpoint(name, epoch, metric)
    if self.best_epoch == epoch:
        self._duplicate(str(path), os.path.join(self.checkpoint_dir, f"model_best{self.extension}"))
    return found


def checkpoint_errors() -> None:
    """Name the file in the error of a truncated or unsafe checkpoint, before the words of timm or torch."""
    load = getattr(_helpers, "_torch_load", None)
    if load is not None and load is not _load_or_name:
        _load_or_name.__wrapped__, _helpers._torch_load = load, _load_or_name
    if isinstance(getattr(_helpers, "safetensors", None), ModuleType):
        _helpers.safetensors = SimpleNamespace(torch=SimpleNamespace(load_file=_load_tensors))


# What torch's reader of pickles raises at bytes that are none.
UNREADABLE = (
    *(AssertionError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError),
    pickle.UnpicklingError,
)


def _load_or_name(path: str | Path, *args, **kwargs) -> Any:
    try:
        files.require_plain(path)
        found = _load_or_name.__wrapped__(path, *args, **kwargs)
    except FileNotFoundError:
        raise
    except UNREADABLE as error:
        rejected = re.search(r"GLOBAL (\S+)", f"{error} {error.__cause__}")
        reason = f"refers to {rejected[1]}" if rejected else "is truncated, or of another type"
        message = f"{path}: not a checkpoint that can be read safely, as it {reason}; nothing in it was run"
        raise RuntimeError(f"{message}. {error}") from error
    try:
        require_held_tensors(found, path)
    except ValueError as error:
        raise RuntimeError(str(error)) from None
    return found


def _load_tensors(path: str | Path, *args, **kwargs) -> dict[str, Tensor]:
    files.require_regular(path)
    try:
        return safetensors.torch.load_file(path, *args, **kwargs)
    except (safetensors.SafetensorError, MemoryError) as error:  # the latter if it cannot be mapped
        raise RuntimeError(f"{path}: truncated, or not a safetensors file: {error}") from error


def grey_images() -> None:
    """Convert 16-bit greys to the nearest of 8 bits where RGB or L is asked for; PIL turns all above 255 white."""
    for reader in (dataset, reader_wds):
        if isinstance(reader.Image, ModuleType):
            reader.Image = SimpleNamespace(open=open_image)  # the only name of PIL's module that they use


def open_image(file: Any, *args, **kwargs) -> Image.Image:
    """What `PIL.Image.open` gives, whose `convert` reads greys of 16 bits as the image trainer does."""
    image: Image.Image = Image.open(file, *args, **kwargs)
    if has_16_bits(image):
        # An attribute of the image would hold it, and its open file, until Python collects garbage.
        image.__class__ = _of_16_bits(type(image))  # type: ignore[arg-type]  # a class has a hash, its images none
    return image


@cache
def _of_16_bits(kind: type[Image.Image]) -> type[Image.Image]:
    return type(kind.__name__, (kind,), {"convert": _convert})


def _convert(image: Image.Image, mode: str | None = None, *args, **kwargs) -> Image.Image:
    if mode in ("RGB", "L"):
        image = Image.fromarray(eight_bits(image))
    return Image.Image.convert(image, mode, *args, **kwargs)


def black_images() -> None:
    """Posterise to 0 bits, as timm's random policies now and then ask: black. Pillow 13 raises a ValueError instead."""
    auto_augment.NAME_TO_OP.update(Posterize=_posterise, PosterizeIncreasing=_posterise)


def _posterise(image: Image.Image, bits: int, **_: Any) -> Image.Image:
    return auto_augment.posterize(image, bits) if bits else image.point(lambda _: 0)


def class_order() -> None:
    """Order classes and images whose names timm takes for equal, such as A and a, or 1 and 01, by their characters.

    timm leaves such classes in the order of a set: two programs, or two processes of torchrun, label them differently.
    """
    for reader in (reader_image_folder, reader_image_tar, reader_image_in_tar):
        reader.natural_key = _total_key


def _total_key(name: str) -> tuple[list[int | str], str]:
    return natural_key(name), name


def reject_unreadable_images() -> None:
    """End the program at an unreadable image, and name it; not among the repairs that :func:`apply` makes.

    timm warns, and uses the next image and its label instead, even in validation. If TIMM_DATASET_MAX_RETRIES says how
    often it may do so, it does.
    """
    if SKIPPING not in os.environ:
        dataset.Image = SimpleNamespace(open=_open_and_read)
        reader_image_folder.open = _open_regular  # hides the built-in function in this module only


def _open_regular(path: str, *args, **kwargs) -> Any:
    """Opens a file, but no pipe or device, which may have no end. timm catches an OSError, but no ValueError."""
    try:
        files.require_regular(path)
        return open(path, *args, **kwargs)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read as an image: {error}") from error


def _open_and_read(file: Any, *args, **kwargs) -> Image.Image:
    """Opens an image and reads all of it. timm catches an OSError, but no ValueError."""
    try:
        image = open_image(file, *args, **kwargs)
        image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        name = getattr(file, "name", file)
        raise ValueError(f"{name}: cannot be read as an image: {error}; {REMEDY}") from error
    return image
