"""Writing files so that a kill or a full disk leaves the old one, and finding damaged and endless ones."""

import contextlib
import math
import os
import pickle
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

MOST_BYTES = 1 << 28  # of a file that is read at once
LONGEST_LINE = 10_000_000  # characters
# What zipfile raises for damaged archives.
DAMAGED = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError)


class PartialFile:
    """A file being written that keeps the error of a failed write, which torch discards."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        """Writes bytes and returns how many; raises OSError if that fails, and keeps it in `error`."""
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        """Hands what is buffered to the operating system."""
        self.file.flush()


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[PartialFile]:
    """A file to write that is renamed to `path` once it is complete on disk, and removed if writing fails.

    Raises:
        OSError: the cause of a failed write, whatever it became on its way.
    """
    temporary, part = f"{path}.tmp", None
    try:
        if os.path.lexists(temporary):  # of a killed run, or a link, through which nothing is written
            os.remove(temporary)
        with open(temporary, "xb") as file:
            part = PartialFile(file)
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


def require_regular(path: str | Path, most: float = math.inf) -> None:
    """Raises ValueError for something other than a file, such as a pipe, which may never end, and for a larger one."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path}: must be a file, not a folder, a pipe or a device")
    if os.path.exists(path) and os.path.getsize(path) > most:
        raise ValueError(f"{path}: has {os.path.getsize(path):,} bytes: must be <= {most:,}")


def bounded_lines(file: TextIO, name: str) -> Iterator[str]:
    """The lines of a text. Raises ValueError for one that is too long to be a text's and may fill the memory."""
    for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), ""), 1):
        if len(line) > LONGEST_LINE:
            raise ValueError(f"{name}, line {number}: must have <= {LONGEST_LINE:,} characters")
        yield line


def require_lines(path: str | Path) -> None:
    """Raises ValueError if it is something other than a file, or a text with a line that may fill the memory."""
    require_regular(path)
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            for _ in bounded_lines(file, str(path)):
                pass


def require_plain(path: str | Path) -> None:
    """Raises ValueError for what is no file, such as a pipe, and for an archive that unpacks to more than its own size.

    torch never compresses a checkpoint.
    """
    require_regular(path)
    unpacked = 0
    with contextlib.suppress(*DAMAGED), zipfile.ZipFile(path) as archive:
        unpacked = sum(part.file_size for part in archive.infolist())
    if unpacked and unpacked > os.path.getsize(path):
        raise ValueError(f"{path}: unpacks to {unpacked:,} bytes: must be <= the size of the file")


def damage(path: str | Path) -> str | None:
    """What is wrong with a checkpoint's file; None if it is intact, or too old to have checksums.

    torch writes checksums but does not check them.
    """
    size = os.path.getsize(path)
    if not size:
        return "empty"
    with open(path, "rb") as file:
        if file.read(1) == pickle.PROTO:  # torch's format before 1.6 has no checksums
            return None
    try:
        with zipfile.ZipFile(path) as archive:
            record = archive.testzip()
    except DAMAGED as error:
        return f"truncated after {size:,} bytes ({error})"
    return f"damaged in {record}" if record else None
