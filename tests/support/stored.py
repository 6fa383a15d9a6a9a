"""The files in tests/reference."""

import tarfile
from pathlib import Path

REFERENCE = Path(__file__).parents[1] / "reference"


def extract(folder: Path) -> None:
    """Writes the checkpoints of earlier versions to a folder."""
    with tarfile.open(REFERENCE / "checkpoints" / "checkpoints.tar.xz") as archive:
        archive.extractall(folder, filter="data")
