"""Two rows that a claim compares, seed by seed."""

from dataclasses import dataclass
from functools import cached_property
from math import isfinite, log
from statistics import mean

import verdict
from recorded import SCALES, Results, at_training_length, number
from results_csv import METRICS
from rows import Paper, Run, Table
from schema import TableError, check_keys

KEYS = {"rows", "metric", "other_metric", "says", "margin", "scale"}
LOWER_IS_BETTER = ("loss", "perplexity", "wer")  # how the names of these metrics begin
UNITS = {"loss": "nats", "perplexity": "nats", "top1": "points", "accuracy": "points", "wer": "points"}


def split_name(name: str, folder: str, papers: dict[str, Paper]) -> tuple[Table | None, str]:
    """The table, if there is one, and the row of the name TABLE/ROW, or FOLDER/TABLE/ROW for another folder's."""
    *other_folder, table, row = name.split("/")
    paper = papers.get(other_folder[0] if other_folder else folder)
    return paper.tables.get(table) if paper else None, row


def run_named(name: str, folder: str, papers: dict[str, Paper]) -> Run:
    """The run of this name.

    Raises:
        TableError: there is no such run.
    """
    table, row = split_name(name, folder, papers)
    if table is None or row not in table.runs:
        raise TableError(f"row {name!r}: no such row")
    return table.runs[row]


@dataclass(frozen=True, eq=False)
class Comparison:
    """A claim about two rows.

    Args:
        first, second: the rows; the claim is about the lead of the first.
        metrics: each row's metric, by its name in tables.toml. Perplexities are compared by their logarithms.
        says: "better", "no worse" (by more than margin) or "equal" (within margin).
        margin: in the unit of the metric; for perplexities, nats.
        fixed_scale: the scale to compare at. If empty, the one with the most shared seeds, counting no more than
            decide a verdict; ties go to the larger scale.
        comparisons: number of comparisons of the claim.
        results: everything that has been recorded.
    """

    first: Run
    second: Run
    metrics: tuple[str, str]
    says: str
    margin: float
    fixed_scale: str
    comparisons: int
    results: Results

    @classmethod
    def read(
        cls, entry: dict, folder: str, papers: dict[str, Paper], results: Results, comparisons: int
    ) -> "Comparison":
        """Reads an entry of claims.toml, one of the `comparisons` of its claim.

        Raises:
            TableError: a key is missing or unknown, or a row, metric, scale or margin is invalid.
        """
        check_keys("compare", entry, KEYS, {"rows", "metric"})
        if len(entry["rows"]) != 2:
            raise TableError(f"compare: {len(entry['rows'])} rows; must be 2")
        first, second = (run_named(name, folder, papers) for name in entry["rows"])
        says, margin = entry.get("says", "better"), entry.get("margin", 0.0)
        try:
            verdict.allowed(says, margin)
        except ValueError as error:
            raise TableError(f"compare: {error}") from error
        metrics = entry["metric"], entry.get("other_metric", entry["metric"])
        for metric in metrics:
            if metric not in METRICS:
                raise TableError(f"compare: metric {metric!r}: no such metric")
        if margin < 0 or (says == "equal" and not margin):
            raise TableError(f"compare: margin={margin}: must be {'> 0' if says == 'equal' else '>= 0'}")
        scale = entry.get("scale", "")
        if scale and scale.split("-")[0] not in SCALES:
            raise TableError(f"compare: scale {scale!r}; must be one of: {', '.join(SCALES)}")
        return cls(first, second, metrics, says, margin, scale, comparisons, results)

    @property
    def metric(self) -> str:
        """The first row's metric."""
        return self.metrics[0]

    @property
    def label(self) -> str:
        """The metric's name without its unit."""
        return METRICS[self.metric].split(",")[0]

    @property
    def unit(self) -> str:
        """The unit of the lead and the margin."""
        return next((UNITS[name] for name in UNITS if self.metric.startswith(name)), METRICS[self.metric])

    def values_by_seed(self, run: Run, metric: str, scale: str) -> dict[str, float]:
        """The values of a row."""
        wanted = {"table": run.table.name, "row": run.name, "scale": scale}
        wanted["metric"] = METRICS[at_training_length(run, metric, scale)]
        found = [one for one in self.results.runs if wanted.items() <= one.items() and one["value"]]
        return {one["seed"]: float(one["value"]) for one in found if isfinite(float(one["value"]))}

    def pairs(self, scale: str) -> list[tuple[float, float]]:
        """The values of both rows for each seed that has run in both."""
        first = self.values_by_seed(self.first, self.metrics[0], scale)
        second = self.values_by_seed(self.second, self.metrics[1], scale)
        return [(first[seed], second[seed]) for seed in first if seed in second]

    @cached_property
    def scale(self) -> str:
        """The scale of the comparison; empty if no seed has run in both rows."""
        labels = {one["scale"] for one in self.results.runs if one["scale"].split("-")[0] in SCALES}
        seeds = {label: min(len(self.pairs(label)), verdict.SEEDS) for label in labels if self.pairs(label)}
        if self.fixed_scale:
            return self.fixed_scale if self.fixed_scale in seeds else ""
        order = sorted(seeds, key=lambda label: (-seeds[label], SCALES.index(label.split("-")[0]), label))
        return order[0] if order else ""

    @cached_property
    def values(self) -> list[tuple[float, float]]:
        return self.pairs(self.scale) if self.scale else []

    @cached_property
    def differences(self) -> list[float]:
        """The first row's lead in each seed, positive where it is better."""
        sign = -1 if self.metric.startswith(LOWER_IS_BETTER) else 1
        scaled = log if self.metric.startswith("perplexity") else float
        return [sign * (scaled(first) - scaled(second)) for first, second in self.values]

    @property
    def mean(self) -> float:
        """The mean lead."""
        return mean(self.differences)

    @property
    def verdict(self) -> str:
        return verdict.verdict(self.differences, self.says, self.margin, self.comparisons)

    def signed(self, value: float) -> str:
        """A difference with its sign."""
        return f"{value:+.{3 if self.unit == 'nats' else 2}f}"

    @property
    def means(self) -> str:
        """Both means, "39.97 / 38.75"."""
        return " / ".join(number(mean(column), self.metric) for column in zip(*self.values))

    @property
    def lead(self) -> str:
        """The mean lead with its unit; empty if nothing has run."""
        return f"{self.signed(self.mean)} {self.unit}" if self.differences else ""

    @property
    def interval(self) -> str:
        """The interval of the mean lead, "+0.80 to +1.64"; empty with fewer than two seeds."""
        low, high = verdict.interval(self.differences)
        return f"{self.signed(low)} to {self.signed(high)}" if isfinite(low) else ""

    @property
    def claim(self) -> str:
        """What is claimed, in words."""
        says = {"better": "ahead of", "no worse": "not behind", "equal": "level with"}[self.says]
        margin = ""
        if self.margin:
            margin = f" {'within' if self.says == 'equal' else 'by more than'} {self.margin:g} {self.unit}"
        return f"`{self.first.name}` {says} `{self.second.name}`{margin}"

    @property
    def cells(self) -> list[str]:
        """The comparison as a line of a table."""
        seeds = str(len(self.differences)) if self.differences else ""
        found = [self.claim, METRICS[self.metric], self.means, self.lead, self.interval, seeds, self.scale]
        return [*found, self.verdict]
