"""Finding damaged checkpoints."""

import os
import pickle
import zipfile
from pathlib import Path


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
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError) as error:
        return f"truncated after {size:,} bytes ({error})"
    return f"damaged in {record}" if record else None
