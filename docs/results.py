"""Generates the table of results in README.md from the recipes' results and docs/speed.md.

python docs/results.py    # rewrites the table between its marks
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "recipes" / "records"))

from results_csv import read  # noqa: E402
from tables import with_table  # noqa: E402

README, SPEED = ROOT / "README.md", ROOT / "docs" / "speed.md"
# Rows that were trained alike: title, folder, table, scale, metric, decimals, rows. The first row is the control.
EXPERIMENTS = (
    (
        "Translation, Multi30k German to English: BLEU, higher is better",
        ("multi30k", "multi30k", "small", "BLEU", 1),
        ("vanilla", "ringformer", "vanilla_half", "storage", "universal", "once", "cycle_rev"),
    ),
    (
        "Language, War and Peace: perplexity at 256, lower is better",
        ("ilr", "ILR 1", "long", "perplexity at 256", 2),
        ("1,1,1,1-rope", "unshared8-rope", "2,2,2,2-rope", "4,2,1,1-rope", "block2-rope"),
    ),
    (
        "Speech, sequences of spoken digits: word errors %, lower is better",
        ("takase", "Spoken digits", "long", "word errors %", 2),
        ("vanilla", "cycle", "universal"),
    ),
    (
        "Images, CIFAR-10 (5,000 of its images): top-1 %, higher is better",
        ("cifar10", "cifar10", "small-5000", "top-1 %", 1),
        ("plain", "ringformer", "plain_half", "uit", "sret"),
    ),
)


def training_step(arch: str) -> str:
    """Time of a training step relative to upstream, from docs/speed.md; empty if it was not measured."""
    tables = re.findall(r"^(\|.+\|)\n\|[-:|]+\|\n((?:\|.+\|\n)+)", SPEED.read_text(encoding="utf-8"), re.MULTILINE)
    for titles, body in tables:
        for line in body.splitlines():
            times = dict(zip(_cells(titles), _cells(line)))
            if line.startswith(f"| `{arch}` |"):
                found = [time for title, time in times.items() if title.startswith("training step")]
                if found:
                    return found[0]
    return ""


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def rows() -> Iterator[list[str]]:
    """One row per model; the first row of a task names it."""
    for title, (folder, table, scale, metric, decimals), names in EXPERIMENTS:
        lines = pd.DataFrame(read(ROOT / "recipes" / folder / "results.csv"))
        wanted = (lines["table"] == table) & (lines["scale"] == scale) & (lines["metric"] == metric)
        by_row = lines[wanted & (lines["value"] != "")].groupby("row")
        for name in names:
            runs = by_row.get_group(name)
            arch, parameters = runs["arch"].iloc[0], int(runs["params"].iloc[0])
            quality = f"{runs['value'].astype(float).mean():.{decimals}f}"
            step = "" if name.endswith(("_half", "storage", "once")) else training_step(arch)  # measured at full depth
            yield [title, f"`{arch}`, {name}", f"{parameters:,}", quality, str(len(runs)), step]
            title = ""


COLUMNS = (
    *("task", "architecture and row", "stored parameters:", "quality:", "seeds:"),
    "time of a training step / upstream's:",
)


def within(document: str) -> str:
    """The document with its table rewritten."""
    return with_table(document, "results", COLUMNS, rows())


if __name__ == "__main__":
    README.write_text(within(README.read_text(encoding="utf-8")), encoding="utf-8")
