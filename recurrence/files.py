"""Files: how they are written and removed, and how damaged ones are found.

A folder may come from a stranger, and hold links to files elsewhere. So whatever is written takes shape under a random
name beside its place, and is renamed when it is complete: a link there is replaced, and its target stays as it is.
"""

import contextlib
import csv
import json
import os
import pickle
import re
import secrets
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

MOST_BYTES = 1 << 28  # of a file that is read at once
# What zipfile raises for damaged archives.
DAMAGED = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError)


def require_regular(path: str | Path) -> None:
    """Raises OSError, with the name, if there is something other than a file: a folder, a pipe or a device."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(f"{path}: must be a file, not a folder, a pipe or a device")


def require_plain(path: str | Path) -> None:
    """As :func:`require_regular`; also raises OSError for an archive that unpacks to more than its size."""
    require_regular(path)
    unpacked = 0
    with contextlib.suppress(*DAMAGED), zipfile.ZipFile(path) as archive:
        unpacked = sum(part.file_size for part in archive.infolist())
    if unpacked and unpacked > os.path.getsize(path):
        raise OSError(f"{path}: unpacks to {unpacked:,} bytes: must be <= the size of the file")


@contextlib.contextmanager
def named_errors(path: str | Path, part: Path | None = None) -> Iterator[None]:
    """Names the file in errors of the operating system that name none, as of a full disk, or its temporary `part`."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(part)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def atomic_write(path: str | Path, mode: str = "w", **options: Any) -> Iterator[IO]:
    """A file to write that is renamed to `path` once it is complete on disk, and removed if writing fails.

    Args:
        path: where it belongs; a link is replaced, never followed.
        mode: "w", or "wb" for bytes.
        **options: as `open` takes them; text is UTF-8.

    Raises:
        OSError: with the name of the file.
    """
    require_regular(path)
    part = _beside(path)
    if "b" not in mode:
        options = {"encoding": "utf-8", **options}
    try:
        with named_errors(path, part):
            with part.open(mode.replace("w", "x"), **options) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
    except BaseException:
        remove(part)
        raise


def write_text(path: str | Path, text: str) -> None:
    """Writes a text; see :func:`atomic_write`."""
    with atomic_write(path) as file:
        file.write(text)


def open_in_place(path: str | Path) -> IO[bytes]:
    """Opens a file to append to it, and makes it if there is none. Raises OSError for a link, a pipe or a device."""
    require_regular(path)
    return open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666), "ab")


def make_folder(path: Path) -> None:
    """Makes a folder, and those that it is in, unless there is one."""
    path.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that is renamed to `path` once it is complete, and removed with its files if that fails.

    Raises:
        OSError: there is a file, or a folder that is not empty, of that name. Only noticed at the end.
    """
    make_folder(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent.resolve(), prefix=f".{path.name}.") as parent:
        folder = Path(parent) / "new"
        folder.mkdir()
        with named_errors(path):
            yield folder
        folder.rename(path)


def temporary_folder() -> tempfile.TemporaryDirectory:
    """A new folder of this user's alone, outside of all others; it is removed after its `with`."""
    return tempfile.TemporaryDirectory()


def replace(source: str | Path, target: str | Path) -> None:
    """Renames a file, in place of another of that name or of a link."""
    os.replace(source, target)


def duplicate(source: str | Path, target: str | Path) -> None:
    """Gives a file another name, in place of another file or a link; copies it if hard links are not supported."""
    if os.path.exists(target) and os.path.samefile(source, target) and not os.path.islink(target):
        return  # renaming one of a file's names to another of them would leave both
    part = _beside(target)
    try:
        os.link(source, part)
    except OSError:
        with open(source, "rb") as file, atomic_write(target, "wb") as copy:
            shutil.copyfileobj(file, copy)
    else:
        part.replace(target)


def remove(path: str | Path) -> None:
    """Removes a file or a link, not its target, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def remove_unfinished(folder: Path) -> None:
    """Removes what a killed program has left of its files in a folder; no other may be writing there."""
    for path in folder.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9a-f]{16}\.tmp", path.name):
            remove(path)


def _beside(path: str | Path) -> Path:
    path = Path(path)
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def require_small(path: str | Path) -> None:
    """As :func:`require_regular`; also raises ValueError for a file that is too large to read at once."""
    require_regular(path)
    if os.path.exists(path) and os.path.getsize(path) > MOST_BYTES:
        raise ValueError(f"{path}: has {os.path.getsize(path):,} bytes: must be <= {MOST_BYTES:,}")


def read_text(path: str | Path, errors: str = "strict") -> str:
    """A file's text. Raises OSError if it is not a file, and ValueError if it is not UTF-8 or too large to read."""
    require_small(path)
    try:
        return Path(path).read_text(encoding="utf-8", errors=errors)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: must be a text in UTF-8: {error}") from None


def read_json(path: str | Path, kind: type) -> Any:
    """What a JSON file contains. Raises ValueError, with its name, if it is damaged or has another type."""
    text = read_text(path)
    try:
        found = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(found, kind):
        raise ValueError(f"{path}: must hold a {kind.__name__}, not a {type(found).__name__}")
    return found


def read_table(path: str | Path) -> list[dict[str, str]]:
    """The rows of a CSV file, by the names in its first line. Raises ValueError, with the name, if it is damaged."""
    try:
        return list(csv.DictReader(read_text(path).splitlines()))
    except csv.Error as error:
        raise ValueError(f"{path}: cannot be read as CSV: {error}") from None


def damage(path: str | Path) -> str | None:
    """What is wrong with a checkpoint's file; None if it is intact, or too old to have checksums.

    torch writes checksums but does not check them.
    """
    require_regular(path)
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
