"""Plot the course of trainings from the logs that fairseq and timm leave (Kausik, Figure 2; Takase & Kiyono, Figure 3).

    python recipes/figures/curves.py OUT/kausik/table2/small --nats --output curves.svg
    python recipes/figures/curves.py A=RUN/train.log B=OTHER/train.log --x hours --y valid_nll_loss --output curves.svg
    python recipes/figures/curves.py A=RUN/summary.csv --x epoch --y eval_top1 --unit "top-1 %" --output curves.svg

A run is a log of fairseq-train with --log-format json, or the summary.csv of train_image.py; of a folder, every
ROW/sSEED/{train.log,summary.csv} under it, named by its row. Runs of one name share a colour. Beside OUTPUT lie the
numbers, as CSV.
"""

import math
import re
import sys
from pathlib import Path

from pictures import COLOURS, FEW, MARKERS, labelled, page, parser, save

from recurrence.analysis.logs import curve

Curve = list[tuple[float, float]]
AXES = {"updates": "updates", "epoch": "epochs", "hours": "hours of training", "tokens": "input tokens (millions)"}
STAGES = {"valid": "validation", "valid1": "training, evaluated:", "train_inner": "training"}


def logs(label: str, path: Path) -> list[tuple[str, Path]]:
    """The logs that an argument names, each with its label.

    Raises:
        ValueError: if there is none.
    """
    if path.is_file():
        return [(label, path)]
    found = sorted([*path.glob("*/s*/summary.csv"), *path.glob("*/s*/train.log")])
    runs = {log.parent: log for log in reversed(found)}  # a summary comes first, its log tells less
    if not runs:
        raise ValueError(f"{path}: no log, and no folder of ROW/sSEED/train.log or ROW/sSEED/summary.csv")
    return [(run.parent.name, log) for run, log in sorted(runs.items())]


def curves(
    arguments: list[tuple[str, Path]], x: str, y: str, stage: str = "valid", factor: float = 1.0
) -> list[tuple[str, Curve]]:
    """The curve of each run by its label. Of several runs, those that have none yet are left out, and named.

    Raises:
        ValueError: if no log has the curve.
    """
    found, refused = [], []
    for label, log in (one for argument in arguments for one in logs(*argument)):
        try:
            found.append((label, [(at, factor * value) for at, value in curve(log, x, y, stage)]))
        except ValueError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    for error in refused:
        print(f"left out: {error}", file=sys.stderr)
    return found


def draw(
    found: list[tuple[str, Curve]],
    references: list[tuple[str, float]],
    names: tuple[str, str],
    path: Path,
    title: str = "",
) -> None:
    """A line for each run, a dotted one for each reference."""
    figure = page(3.4)
    axes = figure.subplots()
    labels = list(dict.fromkeys(label for label, _ in found))
    shown = set()
    for label, points in found:
        number = labels.index(label)
        style = dict(color=COLOURS[number % len(COLOURS)], linestyle=("-", "--", "-.")[number // len(COLOURS) % 3])
        marker = MARKERS[number % len(MARKERS)] if len(points) <= FEW else None
        axes.plot(*zip(*points), marker=marker, markersize=3, label=None if label in shown else label, **style)
        shown.add(label)
    for name, value in references:
        axes.axhline(value, color="grey", linestyle=":", label=f"{name}: {value:g}")
    axes.set(xlabel=names[0], ylabel=names[1], title=title)
    if names[0] in ("epochs", "updates"):
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside right upper")
    save(figure, path, ["run", *names], [(label, *point) for label, points in found for point in points])


def reference(text: str) -> tuple[str, float]:
    """NAME=VALUE."""
    name, _, value = text.rpartition("=")
    return name, float(value)


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__)
    add = command_line.add_argument
    add("runs", type=labelled, nargs="+", metavar="LABEL=LOG|FOLDER")
    add("--x", choices=AXES, default="updates")
    add("--y", help="what the log calls it (default valid_loss, or of training loss)")
    add(
        "--stage",
        choices=STAGES,
        default="valid",
        help="valid1: a second subset of validation; train_inner: means over the updates since the line before",
    )
    add("--nats", action="store_true", help="y is a loss of fairseq, which is to base 2: draw it in nats")
    add("--unit", help="of y, for its axis (default: bits, or nats)")
    add("--title", default="")
    add("--reference", type=reference, action="append", default=[], metavar="NAME=VALUE", help="a dotted line")
    options = command_line.parse_args(arguments)
    y = options.y or ("loss" if options.stage == "train_inner" else f"{options.stage}_loss")
    try:
        found = curves(options.runs, options.x, y, options.stage, math.log(2) if options.nats else 1.0)
    except ValueError as error:
        command_line.error(str(error))
    what = re.sub(r"^(valid\d*|eval|train)_", "", y).replace("_", " ")
    names = AXES[options.x], f"{STAGES[options.stage]} {what}, {options.unit or ('nats' if options.nats else 'bits')}"
    draw(found, options.reference, names, options.output, options.title)


if __name__ == "__main__":
    main()
