"""Results as the tables show them: the runs of a row at its largest scale, and our value for a cell."""

import csv
from math import sqrt
from statistics import mean, stdev

from results_csv import METRICS, read
from rows import RECIPES, Run
from verdict import SEEDS

SCALES = ("paper", "gpu", "long", "small")  # largest first; smoke runs are not results
DECIMALS = {"loss": 4}  # 2 for all others
EXPONENTIAL = ("training_flops", "loss_error", "loss_error_published", "accuracy_error")
EXACT = ("gmac", "mmac", "gflops", "gflops_published", "training_flops")  # counts, the same in every run


class Results:
    """All recorded runs.

    Attributes:
        runs: the lines of every results.csv.
        smoked: (table, row) of each row that has run at scale smoke.
    """

    def __init__(self):
        self.runs = [run for path in sorted(RECIPES.glob("*/results.csv")) for run in read(path)]
        with (RECIPES / "smoke.csv").open(encoding="utf-8", newline="") as file:
            self.smoked = {(line["table"], line["row"]) for line in csv.DictReader(file)}

    def of(self, run: Run) -> list[dict]:
        """The recorded runs of a row at its largest scale."""
        found = [one for one in self.runs if one["table"] == run.table.name and one["row"] == run.name]
        labels = {one["scale"] for one in found if one["scale"].split("-")[0] in SCALES}
        if not labels:
            return []
        largest = min(labels, key=lambda label: (SCALES.index(label.split("-")[0]), label))
        return [one for one in found if one["scale"] == largest]


class Cell:
    """Our values for a cell of a table, one per seed, at the largest scale of the row."""

    def __init__(self, run: Run, metric: str, results: Results):
        found = results.of(run)
        self.scale = found[0]["scale"] if found else ""
        self.metric = at_training_length(run, metric, self.scale)
        name = METRICS.get(self.metric, "")
        rows = [one for one in found if one["metric"] == name]
        self.values = [float(one["value"]) for one in rows if one["value"]]
        self.failed = len(rows) - len(self.values)

    @property
    def decides(self) -> bool:
        """Whether it can be ranked: it has enough seeds, or is an exact count."""
        return len(self.values) >= (1 if self.metric in EXACT else SEEDS)

    @property
    def error(self) -> float:
        """Standard error of the mean; 0 for one value."""
        return stdev(self.values) / sqrt(len(self.values)) if len(self.values) > 1 else 0.0

    def __str__(self) -> str:
        if not self.values:
            return f"failed ({self.scale})" if self.failed else ""
        text = number(mean(self.values), self.metric)
        if len(self.values) == 1:
            return f"{text} ({self.scale})"
        return f"{text} ± {number(self.error, self.metric)} ({self.scale}, {len(self.values)} seeds)"


def at_training_length(run: Run, metric: str, scale: str) -> str:
    """The metric's full name: `perplexity` alone is the one at the training length, for example perplexity_256."""
    base = scale.split("-")[0]
    if metric != "perplexity" or base not in run.scales:
        return metric
    return f"perplexity_{run.settings(base).keys['text']}"


def number(value: float, metric: str) -> str:
    """A value with the decimals of its metric."""
    return f"{value:.{DECIMALS.get(metric, 2)}{'e' if metric in EXPONENTIAL else 'f'}}"
