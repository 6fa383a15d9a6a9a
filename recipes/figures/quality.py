"""Draw quality over stored parameters and over operations, task by task, from what has been recorded.

    PYTHONPATH=. python recipes/figures/quality.py    # rewrites recipes/quality

Operations are the multiply-accumulates of the matrix products of a forward pass, attention included: of two sentences
of 32 tokens, of a text divided by its tokens, of 10 seconds of speech with 20 tokens, of an image. Open circles share
nothing; bars are 95 % intervals over the seeds, where there are several. quality.csv has the numbers.
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
WORK = {"translation": "two sentences", "language": "a token", "sequence": "a character", "speech": "10 s of speech"}
WORK |= {"images": "an image"}
TOKENS, FRAMES, SPOKEN = 32, 1000, 20
COLUMNS = ["task", "row", "stored parameters", "multiply-accumulates, millions", "of", "metric", "quality"]
COLUMNS += ["low", "high", "seeds", "shares"]


def model(experiment: Experiment, row: str) -> nn.Module:
    """A row's model as it was trained, with random weights."""
    import fairseq_plugin  # noqa: F401  (registers its models)

    run, flags = experiment.run(row), budget.trainer(experiment.records(row)[0]["cmd"])
    built = {"translation": count.translation, "speech": count.speech}.get(run.table.kind, count.language)
    return built(run, run.settings(experiment.scale).keys | {"symbols": experiment.symbols}, flags)


def forward(built: nn.Module, run: Run, scale: str) -> tuple[Callable[[], object], int]:
    """A forward pass, and by how much its operations are divided."""
    if run.table.kind == "translation":
        tokens = torch.full((1, TOKENS), 4)
        return lambda: built(tokens, torch.tensor([TOKENS]), tokens), 1
    if run.table.kind == "speech":
        return lambda: built(torch.zeros(1, FRAMES, 80), torch.tensor([FRAMES]), torch.full((1, SPOKEN), 4)), 1
    text = run.settings(scale).keys["text"]
    return lambda: built(torch.full((1, text), 4)), text


def operations(experiment: Experiment, row: str) -> float:
    """Millions of multiply-accumulates; of images those that were recorded."""
    from recurrence.count import flops

    run = experiment.run(row)
    if run.table.kind == "images":
        return float(experiment.records(row, "MMAC")[0]["value"])
    built = model(experiment, row).eval()
    call, parts = forward(built, run, experiment.scale)
    plain = torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH)  # what can be counted
    with warnings.catch_warnings(), torch.no_grad(), plain[0], plain[1]:
        warnings.simplefilter("ignore")  # of the flags
        return flops(call) / 2e6 / parts


def lines() -> list[list]:
    """What is drawn, as COLUMNS has it."""
    found = []
    for experiment in EXPERIMENTS:
        work = WORK[experiment.run(experiment.rows[0]).table.kind]
        for row in experiment.rows:
            cost = experiment.parameters(row), round(operations(experiment, row), 3), work
            told = [f"{value:.6g}" for value in (experiment.quality(row), *experiment.interval(row))]
            shares = "nothing" if row in UNSHARED else "blocks"
            seeds = len(experiment.values(row))
            found.append([experiment.task, row, *cost, experiment.metric, *told, seeds, shares])
    return found


def apart(heights: Sequence[float], least: float) -> list[float]:
    """The same heights, those above others moved up until all lie that far from each other."""
    found = dict(enumerate(heights))
    below = -math.inf
    for index in sorted(found, key=found.get):
        found[index] = below = max(found[index], below + least)
    return [found[index] for index in range(len(heights))]


def panel(axes, found: list[dict], axis: str, better: str) -> None:
    """Quality over one cost; names stand beside their points, on the side of the middle."""
    millions = 1e6 if axis == "parameters" else 1
    cost = [float(one["stored parameters" if axis == "parameters" else AXES["operations"]]) / millions for one in found]
    told = [float(one["quality"]) for one in found]
    axes.set(xlabel=AXES[axis] + (f" for {found[0]['of']}" if axis == "operations" else ""), ylabel=found[0]["metric"])
    low, high = min(float(one["low"]) for one in found), max(float(one["high"]) for one in found)
    edges = low - 0.1 * (high - low), high + 0.1 * (high - low)
    axes.set(xlim=(0, 1.1 * max(cost)), ylim=edges if better == "higher" else edges[::-1])
    for x, y, one in zip(cost, told, found):
        bars = [[y - float(one["low"])], [float(one["high"]) - y]]
        axes.errorbar(x, y, bars, color=COLOURS[0], fmt="o", fillstyle="none" if one["shares"] == "nothing" else "full")
    places = [axes.transAxes.inverted().transform(axes.transData.transform(one)) for one in zip(cost, told)]
    height = 72 * axes.get_window_extent().height / axes.figure.dpi  # points
    line = 1.15 * matplotlib.rcParams["font.size"] / height
    for (x, y), free, one in zip(places, apart([place[1] for place in places], line), found):
        left = x > 0.5
        beside = (-7 if left else 7, height * (free - y))
        axes.annotate(
            one["row"], (x, y), beside, "axes fraction", "offset points", ha="right" if left else "left", va="center"
        )


def recorded(experiment: Experiment) -> list[dict]:
    """The lines of quality.csv of an experiment."""
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
