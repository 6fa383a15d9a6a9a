"""Archives of models: unpacked into a folder of their own, which leaves everything else as it is."""

import itertools
import lzma
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable

from fairseq import file_utils

from fairseq_repairs.files import require_regular
from fairseq_repairs.replace import instead

MOST_BYTES, MOST_TIMES = 1 << 30, 20  # an archive may unpack to this size, or to this many times its own
UNPACKED: list[tempfile.TemporaryDirectory] = []  # which Python removes when it ends


@instead(file_utils, "load_archive_file")
def unpack_archives(load: Callable, archive_file: str) -> str:
    """The folder of a model: itself, or what an archive holds.

    fairseq deletes the archive, even the user's own, and moves to its place whatever the common beginning of the names
    in it points to. With absolute names, that may be any file or folder of this machine; where files without a folder
    merely have names that begin alike, it is nothing, and the move fails. If there is no such archive,
    `from_pretrained` joins None and a file name.

    Raises:
        FileNotFoundError: if there is no such folder or archive.
        ValueError: if it cannot be unpacked, or names in it point out of the archive.
    """
    try:
        found = file_utils.cached_path(archive_file)
    except OSError:
        raise FileNotFoundError(f"{archive_file}: no such folder or archive, nor a model of the package") from None
    if os.path.isdir(found):
        return found
    UNPACKED.append(tempfile.TemporaryDirectory(prefix="fairseq-"))
    folder = _unpack(found, UNPACKED[-1].name)
    if found == str(archive_file):
        return folder
    os.remove(found)  # which fairseq has downloaded; the folder takes its place
    return shutil.move(folder, found)


def _unpack(archive: str, folder: str) -> str:
    """Unpacks an archive, if it takes no more room than a model's; returns the only folder in it, or the given one."""
    if not hasattr(tarfile, "data_filter"):
        raise ValueError("unpacking a model's archive needs Python 3.10.12, 3.11.4, or later")
    require_regular(archive)
    if not tarfile.is_tarfile(archive):  # as a checkpoint, given in place of its folder
        raise ValueError(f"{archive}: must be a folder or an archive of one, not a file in it")
    try:
        with tarfile.open(archive) as members:
            most = max(MOST_BYTES, MOST_TIMES * os.path.getsize(archive))
            if any(size > most for size in itertools.accumulate(member.size for member in members)):
                raise ValueError(f"{archive}: must unpack to <= {most:,} bytes")
            members.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{archive}: must be an archive whose names stay within it: {error}") from error
    names = os.listdir(folder)
    only = os.path.join(folder, names[0]) if len(names) == 1 else folder
    return only if os.path.isdir(only) else folder
