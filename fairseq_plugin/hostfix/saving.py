"""Writing checkpoints: each appears whole or not at all."""

import contextlib
import errno
import logging
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer

from fairseq_plugin.hostfix.replace import look_at_options, look_before, replace

logger = logging.getLogger("fairseq_plugin.hostfix")

TRIES, PAUSE = 3, 2.5  # seconds; a network's disk may be back by then
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # for these there is no use in waiting


def whole_checkpoints() -> None:
    """Let a checkpoint appear by rename alone, and tell of a disk that is full in one line.

    fairseq's second and third try write behind the torn part of the first: a file that nothing can read, reported as a
    success.
    """

    def save_whole(save: Callable) -> Callable:
        def torch_persistent_save(obj: Any, filename: str, async_write: bool = False) -> None:
            if not PathManager.supports_rename(filename):
                return save(obj, filename, async_write)
            for left in reversed(range(TRIES)):
                try:
                    with whole(filename) as file:
                        torch.save(obj, file)
                    return None
                except OSError as error:
                    if error.errno in FULL or not left:
                        raise _unwritten(error, filename) from error
                    logger.warning(f"cannot write {filename}: {error.strerror}; once more in {PAUSE} s")
                    time.sleep(PAUSE)

        return torch_persistent_save

    replace(checkpoint_utils, "torch_persistent_save", save_whole)


def whole_copies() -> None:
    """Copy to ``checkpoint_last.pt`` and ``checkpoint_best.pt`` as whole files.

    fairseq copies onto the file that is there, so that a kill or a full disk leaves nothing to resume from.
    """

    def copy_whole(copy: Callable) -> Callable:
        def copy_to_whole_file(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
            if PathManager.path_requires_pathmanager(src_path) or PathManager.path_requires_pathmanager(dst_path):
                return copy(src_path, dst_path, overwrite)
            try:
                with open(src_path, "rb") as source, whole(dst_path) as file:
                    shutil.copyfileobj(source, file, 1 << 24)
            except OSError as error:
                raise _unwritten(error, dst_path) from error
            return True

        return copy_to_whole_file

    replace(PathManager, "copy", copy_whole)


def refuse_asynchronous_saving() -> None:
    """Refuse ``--write-checkpoints-asynchronously``, with which a full disk is reported as a success.

    Nor does fairseq write ``checkpoint_last.pt`` then, without which the same command starts anew.
    """

    look_at_options(_refuse_asynchronous)
    look_before(Trainer, "__init__", _refuse_configured)


def _refuse_configured(self, cfg, *args, **kwargs) -> None:
    _refuse_asynchronous(cfg.checkpoint)


def _refuse_asynchronous(checkpoint: Any) -> None:
    if getattr(checkpoint, "write_checkpoints_asynchronously", False):
        raise ValueError(
            "--write-checkpoints-asynchronously: fairseq writes no checkpoint_last.pt then and tells of no write that "
            "fails; leave it out"
        )


class _Part:
    """A file being written. torch forgets why a write failed; this tells."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


@contextlib.contextmanager
def whole(path: str | Path) -> Iterator[_Part]:
    """A file to write that takes its name when all of it is on the disk, and leaves nothing behind if writing fails."""
    temporary, part = f"{path}.tmp", None
    try:
        with open(temporary, "wb") as file:
            part = _Part(file)
            yield part
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        if part is not None and part.error is not None:
            raise part.error from error
        raise


def _unwritten(error: OSError, path: str) -> OSError:
    found = newest_whole(Path(path).parent)
    kept = f"the newest whole checkpoint is {found}" if found else "there is no whole checkpoint yet"
    return OSError(f"{path}: cannot be written: {error.strerror or error}; {kept}")


def damage(path: str | Path) -> str | None:
    """What is wrong with a checkpoint's file as a whole, checksums included; None where nothing is, or none can tell.

    torch itself does not look at the checksums that it writes.
    """
    size = os.path.getsize(path)
    if not size:
        return "empty"
    with open(path, "rb") as file:
        if file.read(4) != b"PK\x03\x04":  # torch's format before 1.6 has no checksums
            return None
    try:
        with zipfile.ZipFile(path) as archive:
            record = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError) as error:
        return f"torn after {size:,} bytes ({error})"
    return record and f"damaged in {record}"


def newest_whole(folder: Path) -> Path | None:
    """The youngest checkpoint of a folder that is whole."""
    found = sorted(folder.glob("checkpoint*.pt"), key=os.path.getmtime, reverse=True)
    return next((path for path in found if damage(path) is None), None)
