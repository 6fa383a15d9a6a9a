"""Plot training curves from logs of fairseq and train_image.py (Kausik, Figure 2; Takase & Kiyono, Figure 3).

    python recipes/figures/curves.py A=RUN/train.log B=OTHER/train.log --x hours --y valid_nll_loss --output curves.svg
    python recipes/figures/curves.py A=RUN/summary.csv --x epoch --y eval_top1 --unit "top-1 %" --output curves.svg

A run is a log of fairseq-train with --log-format json, or a summary.csv of train_image.py. Runs with the same label
share a colour. The numbers are saved next to the picture, as CSV.
"""

import math
import re
import sys
from pathlib import Path

from logs import curve
from pictures import COLOURS, FEW, MARKERS, labelled, page, parser, save, whole_numbers

Curve = list[tuple[float, float]]
AXES = {"updates": "updates", "epoch": "epochs", "hours": "hours of training", "tokens": "input tokens (millions)"}
STAGES = {"valid": "validation", "valid1": "training, evaluated:", "train_inner": "training"}


def curves(
    logs: list[tuple[str, Path]], x: str, y: str, stage: str = "valid", factor: float = 1.0
) -> list[tuple[str, Curve]]:
    """The label and the curve of each run. Runs that have no such curve yet are skipped with a message on stderr.

    Raises:
        ValueError: if no run has the curve.
    """
    runs, errors = [], []
    for label, log in logs:
        try:
            runs.append((label, [(at, factor * value) for at, value in curve(log, x, y, stage)]))
        except ValueError as error:
            errors.append(error)
    if not runs:
        raise errors[0]
    for error in errors:
        print(f"left out: {error}", file=sys.stderr)
    return runs


def draw(
    runs: list[tuple[str, Curve]], references: list[tuple[str, float]], names: tuple[str, str], path: Path, title: str
) -> None:
    """Draws a line for each run, and a dotted line for each reference."""
    figure = page(3.4)
    axes = figure.subplots()
    labels = list(dict.fromkeys(label for label, _ in runs))
    in_legend = set()
    for label, points in runs:
        number = labels.index(label)
        style = dict(color=COLOURS[number % len(COLOURS)], linestyle=("-", "--", "-.")[number // len(COLOURS) % 3])
        marker = MARKERS[number % len(MARKERS)] if len(points) <= FEW else None
        axes.plot(*zip(*points), marker=marker, markersize=3, label=None if label in in_legend else label, **style)
        in_legend.add(label)
    for name, value in references:
        axes.axhline(value, color="grey", linestyle=":", label=f"{name}: {value:g}")
    axes.set(xlabel=names[0], ylabel=names[1], title=title)
    if names[0] in ("epochs", "updates"):
        whole_numbers(axes.xaxis)
    figure.legend(loc="outside right upper")
    save(figure, path, ["run", *names], [(label, *point) for label, points in runs for point in points])


def reference(text: str) -> tuple[str, float]:
    """Parses an argument of the form NAME=VALUE."""
    name, _, value = text.rpartition("=")
    return name, float(value)


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__)
    add = command_line.add_argument
    add("runs", type=labelled, nargs="+", metavar="LABEL=LOG")
    add("--x", choices=AXES, default="updates")
    add("--y", help="name in the log (default valid_loss; loss with --stage train_inner)")
    stages = "valid1: a second validation subset; train_inner: means over the updates since the previous line"
    add("--stage", choices=STAGES, default="valid", help=stages)
    add("--nats", action="store_true", help="convert y, a loss of fairseq, from base 2 to nats")
    add(
        "--unit", help="unit of y on its axis (default for losses: bits in fairseq's logs, nats with --nats and timm's)"
    )
    add("--title", default="")
    add("--reference", type=reference, action="append", default=[], metavar="NAME=VALUE", help="draw a dotted line")
    options = command_line.parse_args(arguments)
    y = options.y or ("loss" if options.stage == "train_inner" else f"{options.stage}_loss")
    for _, log in options.runs if options.nats else ():
        if log.suffix == ".csv" or not y.endswith("loss"):
            command_line.error(f"--nats: converts a loss in a log of fairseq: {y} of {log} is none to base 2")
    try:
        runs = curves(options.runs, options.x, y, options.stage, math.log(2) if options.nats else 1.0)
    except (OSError, ValueError) as error:
        command_line.error(str(error))
    quantity = re.sub(r"^(valid\d*|eval|train)_", "", y).replace("_", " ")
    natural = options.nats or all(log.suffix == ".csv" for _, log in options.runs)
    unit = options.unit or ("" if not y.endswith("loss") else "nats" if natural else "bits")
    stage = "train_inner" if y.startswith("train_") else options.stage  # a line of summary.csv has both
    names = AXES[options.x], f"{STAGES[stage]} {quantity}{unit and f', {unit}'}"
    draw(runs, options.reference, names, options.output, options.title)


if __name__ == "__main__":
    main()
