"""The table of results: its columns, and how it is read and written."""

import csv
from pathlib import Path

COLUMNS = ["table", "row", "arch", "scale", "seed", "metric", "value", "signature", "paper_value"]
COLUMNS += ["params", "core_params", "updates", "wall_s", "device", "torch", "commit", "cmd"]


def append(path: Path, rows: list[dict]) -> None:
    """Add rows at the end of a table, which is made if missing; earlier rows stay as they are."""
    fresh = not path.exists() or path.stat().st_size == 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(rows)


def read(path: Path) -> list[dict]:
    """All rows.

    Raises:
        ValueError: the header is not the one that append writes.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            raise ValueError(f"{path}: columns {reader.fieldnames}, must be {COLUMNS}")
        return list(reader)
