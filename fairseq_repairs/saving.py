"""Writing checkpoints atomically, and finding damaged ones."""

import errno
import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from fairseq_repairs.files import atomic_write, damage
from fairseq_repairs.replace import after, before, instead

logger = logging.getLogger(__name__)

TRIES, PAUSE = 3, 2.5  # seconds between tries, because a network disk may recover
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors for which waiting does not help
# The names of checkpoints, before the suffix of a run or, of sharded states, of a rank (--checkpoint-suffix).
NAME = r"checkpoint(?:_last|_best|\d+|_\d+_\d+|\.best_.+_-?\d+\.\d+)"


@before(checkpoint_utils, "verify_checkpoint_directory")
def require_folder(save_dir: str) -> None:
    """Names a `--save-dir` that is a file; fairseq names a file `dummy` within."""
    if os.path.isfile(save_dir):
        raise NotADirectoryError(f"--save-dir {save_dir}: is a file, must be a folder")


@instead(checkpoint_utils, "torch_persistent_save")
def write_checkpoints_atomically(save: Callable, obj: Any, filename: str, async_write: bool = False) -> None:
    """Writes a checkpoint under a temporary name and renames it; reports a full disk in one line.

    fairseq's second and third try append to the partial file of the first, and report the unreadable result as a
    success.
    """
    if async_write or not PathManager.supports_rename(filename):
        return save(obj, filename, async_write)
    for left in reversed(range(TRIES)):
        try:
            with atomic_write(filename) as file:
                torch.save(obj, file)
            return None
        except OSError as error:
            if error.errno in FULL or not left:
                raise _write_error(error, filename) from error
            logger.warning(f"cannot write {filename}: {error.strerror}; trying again in {PAUSE} s")
            time.sleep(PAUSE)


@instead(PathManager, "copy")
def copy_checkpoints_atomically(copy: Callable, src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    """Copies to `checkpoint_last.pt` and `checkpoint_best.pt` atomically.

    fairseq overwrites the existing file, so a kill or a full disk leaves nothing to resume from.
    """
    remote = any(map(PathManager.path_requires_pathmanager, (src_path, dst_path)))
    if remote or not overwrite:
        return copy(src_path, dst_path, overwrite)
    try:
        with open(src_path, "rb") as source, atomic_write(dst_path) as file:
            shutil.copyfileobj(source, file, 1 << 24)
    except OSError as error:
        raise _write_error(error, dst_path) from error
    return True


@after(checkpoint_utils, "save_checkpoint")
def save_updates_that_end_an_epoch(saved: None, cfg: Any, trainer: Any, epoch_itr: Any, val_loss: Any) -> None:
    """Writes the checkpoint of `--save-interval-updates` also where an epoch ends, with `--no-epoch-checkpoints`.

    fairseq writes none by update there, so that an average of the last ones has an older one in its place. As within
    an epoch, `--keep-interval-updates` of them are kept.
    """
    updates, interval, suffix = trainer.get_num_updates(), cfg.save_interval_updates, trainer.checkpoint_suffix
    if not (cfg.no_epoch_checkpoints and epoch_itr.end_of_epoch()) or interval <= 0 or updates % interval:
        return
    if cfg.no_save or cfg.no_last_checkpoints or not trainer.should_save_checkpoint_on_current_rank:
        return
    last = Path(cfg.save_dir) / f"checkpoint_last{suffix}.pt"
    named = last.with_name(f"checkpoint_{epoch_itr.epoch}_{updates}{suffix}.pt")
    PathManager.copy(str(last), str(named), overwrite=True)
    most, spared = cfg.keep_interval_updates, cfg.keep_interval_updates_pattern
    pattern = rf"checkpoint_\d+_(\d+){re.escape(suffix)}\.pt"
    newest_first = checkpoint_utils.checkpoint_paths(cfg.save_dir, pattern, keep_match=True)
    passing = [path for path, update in newest_first if spared == -1 or update % spared]
    for path in passing[most:] if most > 0 else ():
        os.remove(path)


def _write_error(error: OSError, path: str) -> OSError:
    """An error that names the file and the newest intact checkpoint beside it."""
    found = newest_intact(Path(path))
    kept = f"the newest intact checkpoint is {found}" if found else "there is no intact checkpoint yet"
    return OSError(f"{path}: cannot be written: {error.strerror or error}; {kept}")


def newest_intact(beside: Path) -> Path | None:
    """The newest intact checkpoint of the run to which a file belongs, in the same folder; None if there is none."""
    suffix = re.escape(_suffix(beside))
    files = [path for path in beside.parent.glob("checkpoint*.pt") if re.fullmatch(rf"{NAME}{suffix}\.pt", path.name)]
    files = [path for path in files if path.is_file()]  # no links to files that are gone
    found = sorted(files, key=os.path.getmtime, reverse=True)
    return next((path for path in found if damage(path) is None), None)


def _suffix(path: Path) -> str:
    found = re.fullmatch(rf"{NAME}(.*)\.pt", path.name)
    return found[1] if found else ""
