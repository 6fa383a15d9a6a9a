"""Plot quality over stored parameters and over operations for each task, from the recorded results.

    PYTHONPATH=. python recipes/figures/quality.py    # rewrites recipes/quality

Operations are the multiply-accumulates of the matrix products of a forward pass, including attention: for a pair of
sentences of 32 tokens, per token of a text, for 10 seconds of speech with 20 tokens, for an image. Open circles mark
models without sharing; bars are 95 % intervals over seeds, if there are several. The numbers are saved in quality.csv.
"""

import argparse
import csv
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
import torch
from matplotlib.axes import Axes
from pictures import COLOURS, page, save_picture
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "records"))

import budget  # noqa: E402
import count  # noqa: E402
from experiments import EXPERIMENTS, UNSHARED, Experiment  # noqa: E402
from rows import RECIPES, Run  # noqa: E402

FOLDER = RECIPES / "quality"
AXES = {"parameters": "stored parameters, millions", "operations": "multiply-accumulates, millions"}
INPUTS = {  # that the operations are counted for, by kind of table
    "translation": "two sentences",
    "language": "a token",
    "sequence": "a character",
    "speech": "10 s of speech",
    "images": "an image",
}
TOKENS, FRAMES, SPOKEN = 32, 1000, 20  # per sentence, frames per utterance, tokens per utterance
COLUMNS = [
    "task",
    "row",
    "stored parameters",
    "multiply-accumulates, millions",
    "of",
    "metric",
    "quality",
    "low",
    "high",
    "seeds",
    "shares",
]


def model(experiment: Experiment, row: str) -> nn.Module:
    """The model that was trained for a row, with random weights."""
    import fairseq_plugin  # noqa: F401  (registers its models)

    run, flags = experiment.run(row), budget.trainer(experiment.records(row)[0]["cmd"])
    build = {"translation": count.translation, "speech": count.speech}.get(run.table.kind, count.language)
    return build(run, run.settings(experiment.scale).keys | {"symbols": experiment.symbols}, flags)


def forward(network: nn.Module, run: Run, scale: str) -> tuple[Callable[[], object], int]:
    """A forward pass, and the number by which its operations are divided: the tokens of a text, else 1."""
    if run.table.kind == "translation":
        tokens = torch.full((1, TOKENS), 4)
        return lambda: network(tokens, torch.tensor([TOKENS]), tokens), 1
    if run.table.kind == "speech":
        return lambda: network(torch.zeros(1, FRAMES, 80), torch.tensor([FRAMES]), torch.full((1, SPOKEN), 4)), 1
    text = run.settings(scale).keys["text"]
    return lambda: network(torch.full((1, text), 4)), text


def operations(experiment: Experiment, row: str) -> float:
    """Multiply-accumulates in millions, counted here; for image models, as recorded."""
    from recurrence.count import flops

    run = experiment.run(row)
    if run.table.kind == "images":
        return float(experiment.records(row, "MMAC")[0]["value"])
    network = model(experiment, row).eval()
    run_once, divisor = forward(network, run, experiment.scale)
    # Fused kernels cannot be counted.
    no_onednn, no_fused_attention = torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH)
    with warnings.catch_warnings(), torch.no_grad(), no_onednn, no_fused_attention:
        warnings.simplefilter("ignore")  # setting the oneDNN flags warns
        return flops(run_once) / 2e6 / divisor


def lines() -> list[list]:
    """The lines of quality.csv, in the order of `COLUMNS`."""
    table = []
    for experiment in EXPERIMENTS:
        counted_for = INPUTS[experiment.run(experiment.rows[0]).table.kind]
        for row in experiment.rows:
            cost = experiment.parameters(row), round(operations(experiment, row), 3), counted_for
            quality = [f"{value:.6g}" for value in (experiment.quality(row), *experiment.interval(row))]
            seeds = len(experiment.values(row))
            shares = "nothing" if row in UNSHARED else "blocks"
            table.append([experiment.task, row, *cost, experiment.metric, *quality, seeds, shares])
    return table


def apart(heights: Sequence[float], least: float) -> list[float]:
    """The heights, moved up where needed so that any two differ by at least the given distance."""
    spaced = dict(enumerate(heights))
    below = -math.inf
    for index in sorted(spaced, key=spaced.get):
        spaced[index] = below = max(spaced[index], below + least)
    return [spaced[index] for index in range(len(heights))]


def label_points(axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Writes a name beside each point, towards the middle of the panel, without overlaps."""
    places = [axes.transAxes.inverted().transform(axes.transData.transform(point)) for point in points]
    height = 72 * axes.get_window_extent().height / axes.figure.dpi  # points
    line = 1.15 * matplotlib.rcParams["font.size"] / height
    for (x, y), free, name in zip(places, apart([place[1] for place in places], line), names):
        left = x > 0.5
        offset = (-7 if left else 7, height * (free - y))
        side = "right" if left else "left"
        axes.annotate(name, (x, y), offset, "axes fraction", "offset points", ha=side, va="center")


def panel(axes: Axes, rows: list[dict], axis: str, better: str) -> None:
    """Draws quality over one of the two costs."""
    if axis == "parameters":
        costs = [float(row["stored parameters"]) / 1e6 for row in rows]
        counted_for = ""
    else:
        costs = [float(row[AXES["operations"]]) for row in rows]
        counted_for = f" for {rows[0]['of']}"
    axes.set(xlabel=AXES[axis] + counted_for, ylabel=rows[0]["metric"])
    low, high = min(float(row["low"]) for row in rows), max(float(row["high"]) for row in rows)
    limits = low - 0.1 * (high - low), high + 0.1 * (high - low)
    axes.set(xlim=(0, 1.1 * max(costs)), ylim=limits if better == "higher" else limits[::-1])
    points = [(cost, float(row["quality"])) for cost, row in zip(costs, rows)]
    for (x, y), row in zip(points, rows):
        bars = [[y - float(row["low"])], [float(row["high"]) - y]]
        axes.errorbar(x, y, bars, color=COLOURS[0], fmt="o", fillstyle="none" if row["shares"] == "nothing" else "full")
    label_points(axes, points, [row["row"] for row in rows])


def recorded(experiment: Experiment) -> list[dict]:
    """The lines of quality.csv that belong to an experiment."""
    with (FOLDER / "quality.csv").open(encoding="utf-8", newline="") as file:
        return [line for line in csv.DictReader(file) if line["task"] == experiment.task]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    table = lines()
    with (FOLDER / "quality.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *table])
    for experiment in EXPERIMENTS:
        for axis in AXES:
            figure = page(2.5, width=3.3)
            panel(figure.subplots(), recorded(experiment), axis, experiment.better)
            save_picture(figure, FOLDER / f"{experiment.task}-{axis}.svg")


if __name__ == "__main__":
    main()
