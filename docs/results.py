"""Generates the table and the picture of results in README.md from the recipes' results and docs/speed.md.

python docs/results.py    # rewrites the table between its marks, and docs/results.svg
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "recipes" / "records"), str(ROOT / "recipes" / "figures")]

from experiments import EXPERIMENTS  # noqa: E402

from recurrence.catalogue import Table  # noqa: E402

README, SPEED, PICTURE = ROOT / "README.md", ROOT / "docs" / "speed.md", ROOT / "docs" / "results.svg"


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
    for experiment in EXPERIMENTS:
        title = f"{experiment.title}: {experiment.metric}, {experiment.better} is better"
        for row in experiment.rows:
            records = experiment.records(row)
            arch = records[0]["arch"]
            quality = f"{experiment.quality(row):.{1 if experiment.better == 'higher' else 2}f}"
            step = "" if row.endswith("_half") else training_step(arch)  # measured at full depth
            yield [title, f"`{arch}`, {row}", f"{experiment.parameters(row):,}", quality, str(len(records)), step]
            title = ""


TABLE = Table(
    "results",
    (
        "task",
        "architecture and row",
        "stored parameters:",
        "quality:",
        "seeds:",
        "training step, relative to upstream:",
    ),
    rows,
)


def draw(path: Path) -> None:
    """Quality over stored parameters, a panel per experiment."""
    import matplotlib
    from pictures import COLOURS, page, save_picture
    from quality import panel, recorded

    with matplotlib.rc_context({"svg.fonttype": "none", "font.size": 9}):
        figure = page(6.3, width=5.6)
        *panels, last = figure.subplots(3, 2).flat
        for axes, experiment in zip(panels, EXPERIMENTS):
            panel(axes, recorded(experiment), "parameters", experiment.better)
            axes.set_title(experiment.title.split(",")[0])
        for style, told in (("full", "blocks run several times"), ("none", "nothing is shared")):
            last.plot([], [], "o", color=COLOURS[0], fillstyle=style, label=told)
        last.legend(loc="center", title="bars: 95 % intervals, where\nthere are several seeds")
        last.set_axis_off()
        save_picture(figure, path)


def main() -> None:
    README.write_text(TABLE.within(README.read_text(encoding="utf-8")), encoding="utf-8")
    draw(PICTURE)


if __name__ == "__main__":
    main()
