"""What has been recorded of a row: its runs by scale and seed, and its value where a table shows it."""

import csv
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

from collect import METRICS, read
from rows import RECIPES, Run
from verdict import SEEDS

SCALES = ("paper", "gpu", "long", "small")  # the largest first; smoke is none
DECIMALS = {"loss": 4, "top1": 2}
LARGE = {"training_flops": "e", "loss_error": "e", "loss_error_published": "e", "accuracy_error": "e"}
EXACT = ("gmac", "mmac", "gflops", "gflops_published", "training_flops")  # counts, the same in every run


class Results:
    """What has been recorded, by table, row and metric."""

    def __init__(self, recipes: Path = RECIPES):
        self.runs = [run for path in sorted(recipes.glob("*/results.csv")) for run in read(path)]
        path = recipes / "smoke.csv"
        with path.open(encoding="utf-8", newline="") as file:
            self.smoked = {(line["table"], line["row"]) for line in csv.DictReader(file)}

    def of(self, run: Run) -> list[dict]:
        """All rows of the largest scale of a run."""
        found = [one for one in self.runs if one["table"] == run.table.name and one["row"] == run.name]
        labels = {one["scale"] for one in found if one["scale"].split("-")[0] in SCALES}
        if not labels:
            return []
        best = min(labels, key=lambda label: (SCALES.index(label.split("-")[0]), label))
        return [one for one in found if one["scale"] == best]


class Cell:
    """Ours of one column: the values of the largest scale."""

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
        """Whether anything may follow for the paper: of enough seeds, or of an exact count."""
        return len(self.values) >= (1 if self.metric in EXACT else SEEDS)

    @property
    def error(self) -> float:
        """Standard error of the mean; 0 of one value."""
        return stdev(self.values) / sqrt(len(self.values)) if len(self.values) > 1 else 0.0

    def __str__(self) -> str:
        if not self.values:
            return f"failed ({self.scale})" if self.failed else ""
        text = number(mean(self.values), self.metric)
        if len(self.values) == 1:
            return f"{text} ({self.scale})"
        return f"{text} ± {number(self.error, self.metric)} ({self.scale}, {len(self.values)} seeds)"


def at_training_length(run: Run, metric: str, scale: str) -> str:
    """`perplexity` is that of texts as long as the model was trained on."""
    base = scale.split("-")[0]
    if metric != "perplexity" or base not in run.scales:
        return metric
    return f"perplexity_{run.settings(base).keys['text']}"


def number(value: float, metric: str) -> str:
    """As many decimals as its metric is told with."""
    return f"{value:.{DECIMALS.get(metric, 2)}{LARGE.get(metric, 'f')}}"
