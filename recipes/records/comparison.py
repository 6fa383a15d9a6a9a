"""Two rows that a claim compares, and what has been recorded of them at the scale that tells most."""

from dataclasses import dataclass
from functools import cached_property
from math import isfinite, log
from statistics import mean

import verdict
from collect import METRICS
from recorded import SCALES, Results, at_training_length, number
from rows import Paper, Run, TableError, known

KEYS = {"rows", "metric", "other_metric", "says", "margin", "scale"}
LOWER = ("loss", "perplexity", "wer")  # begin the names of metrics that are better when smaller


def run_named(name: str, paper: str, papers: dict[str, Paper]) -> Run:
    """The run that TABLE/ROW names, or FOLDER/TABLE/ROW where it is of another folder's.

    Raises:
        TableError: there is none.
    """
    *folder, table, row = name.split("/")
    found = papers.get(folder[0] if folder else paper)
    if found is None or table not in found.tables or row not in found.tables[table].runs:
        raise TableError(f"row {name!r}: there is none")
    return found.tables[table].runs[row]


@dataclass(frozen=True, eq=False)
class Comparison:
    """What is claimed of two rows.

    Args:
        better, other: the rows; the claim is of the first one's lead over the second.
        metrics: the short name of each one's metric; perplexities are compared by their logarithms.
        says: "better", "no worse" (by more than margin) or "equal" (within margin).
        margin: in the metric's unit, of perplexity in nats.
        fixed_scale: the scale to look at; empty: the one with most seeds up to those that decide, of these the largest.
        results: all that has been recorded.
    """

    better: Run
    other: Run
    metrics: tuple[str, str]
    says: str
    margin: float
    fixed_scale: str
    results: Results

    @classmethod
    def read(cls, entry: dict, paper: str, papers: dict[str, Paper], results: Results) -> "Comparison":
        """From an entry of claims.toml.

        Raises:
            TableError: a key is missing or unknown, there is no such row, metric or scale, the margin has no meaning.
        """
        known("compare", entry, KEYS, {"rows", "metric"})
        if len(entry["rows"]) != 2:
            raise TableError(f"compare: {len(entry['rows'])} rows; must be 2")
        better, other = (run_named(name, paper, papers) for name in entry["rows"])
        says, margin = entry.get("says", "better"), entry.get("margin", 0.0)
        try:
            verdict.allowed(says, margin)
        except ValueError as error:
            raise TableError(f"compare: {error}") from error
        metrics = entry["metric"], entry.get("other_metric", entry["metric"])
        for metric in metrics:
            if metric not in METRICS:
                raise TableError(f"compare: metric {metric!r}: there is none")
        if margin < 0 or (says == "equal" and not margin):
            raise TableError(f"compare: margin={margin}: must be {'> 0' if says == 'equal' else '>= 0'}")
        scale = entry.get("scale", "")
        if scale and scale.split("-")[0] not in SCALES:
            raise TableError(f"compare: scale {scale!r}; must be one of: {', '.join(SCALES)}")
        return cls(better, other, metrics, says, margin, scale, results)

    @property
    def metric(self) -> str:
        """That of the first row, which the second's is comparable with."""
        return self.metrics[0]

    def seeds(self, run: Run, metric: str, scale: str) -> dict[str, float]:
        """Values of a row by seed; of a seed that ran twice, the last."""
        metric = METRICS[at_training_length(run, metric, scale)]
        wanted = (run.table.name, run.name, scale, metric)
        of = (
            one for one in self.results.runs if tuple(one[key] for key in ("table", "row", "scale", "metric")) == wanted
        )
        return {one["seed"]: float(one["value"]) for one in of if one["value"] and isfinite(float(one["value"]))}

    def pairs(self, scale: str) -> list[tuple[float, float]]:
        """Both rows' values of each seed that both have."""
        mine, theirs = (self.seeds(run, metric, scale) for run, metric in zip((self.better, self.other), self.metrics))
        return [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]

    @cached_property
    def scale(self) -> str:
        """The scale that is looked at; empty if no seed has run in both rows."""
        labels = {one["scale"] for one in self.results.runs if one["scale"].split("-")[0] in SCALES}
        ran = {label: min(len(self.pairs(label)), verdict.SEEDS) for label in labels if self.pairs(label)}
        if self.fixed_scale:
            return self.fixed_scale if self.fixed_scale in ran else ""
        order = sorted(ran, key=lambda label: (-ran[label], SCALES.index(label.split("-")[0]), label))
        return order[0] if order else ""

    @cached_property
    def values(self) -> list[tuple[float, float]]:
        return self.pairs(self.scale) if self.scale else []

    @cached_property
    def differences(self) -> list[float]:
        """The first row's lead, seed by seed: positive where it is better."""
        sign = -1 if self.metric.startswith(LOWER) else 1
        told = log if self.metric.startswith("perplexity") else float
        return [sign * (told(mine) - told(theirs)) for mine, theirs in self.values]

    @property
    def verdict(self) -> str:
        return verdict.verdict(self.differences, self.says, self.margin)

    @property
    def ours(self) -> str:
        """Both means, "39.97 / 38.75"."""
        return " / ".join(number(mean(column), self.metric) for column in zip(*self.values))

    @property
    def label(self) -> str:
        """The metric as it is told, without its unit."""
        return METRICS[self.metric].split(",")[0]

    @property
    def mean(self) -> float:
        """The mean difference."""
        return mean(self.differences)

    @property
    def unit(self) -> str:
        """Of the lead and the margin."""
        names = {"loss": "nats", "perplexity": "nats", "top1": "points", "accuracy": "points", "wer": "points"}
        return next((unit for name, unit in names.items() if self.metric.startswith(name)), METRICS[self.metric])

    def told(self, value: float) -> str:
        """A difference with its sign."""
        return f"{value:+.{3 if self.unit == 'nats' else 2}f}"

    @property
    def lead(self) -> str:
        """The mean difference with its unit; nothing if none has run."""
        return f"{self.told(self.mean)} {self.unit}" if self.differences else ""

    @property
    def interval(self) -> str:
        """That of the mean difference, "+0.80 to +1.64"; nothing with fewer than two seeds."""
        low, high = verdict.interval(self.differences)
        return f"{self.told(low)} to {self.told(high)}" if isfinite(low) else ""

    @property
    def claim(self) -> str:
        """What is claimed of the rows."""
        says = {"better": "ahead of", "no worse": "not behind", "equal": "level with"}[self.says]
        within = f" by more than {self.margin:g} {self.unit}" if self.margin else ""
        within = within.replace("by more than", "within") if self.says == "equal" else within
        return f"`{self.better.name}` {says} `{self.other.name}`{within}"

    @property
    def cells(self) -> list[str]:
        """The comparison as a line of a table."""
        seeds = str(len(self.differences)) if self.differences else ""
        told = [self.claim, METRICS[self.metric], self.ours, self.lead, self.interval, seeds, self.scale]
        return [*told, self.verdict]
