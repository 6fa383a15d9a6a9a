"""Rows that are compared in README.md and in the report's first pictures, because they were trained alike."""

from dataclasses import dataclass
from statistics import mean

import results_csv
import verdict
from rows import RECIPES, Run, read


@dataclass(frozen=True)
class Experiment:
    """Rows of one table that were trained alike.

    Args:
        title: task and test set.
        recipe: a folder of recipes/.
        table: the table's name in results.csv.
        scale: the scale of the runs.
        metric: the metric of quality, by its name in results.csv.
        better: "higher" or "lower".
        symbols: size of the vocabulary, for the operations of the output layer; 0 for images.
        rows: names of the rows; the first is the control.
    """

    title: str
    recipe: str
    table: str
    scale: str
    metric: str
    better: str
    symbols: int
    rows: tuple[str, ...]

    @property
    def task(self) -> str:
        """The first words of the title, in lower case."""
        return self.title.split(",")[0].lower()

    def run(self, row: str) -> Run:
        """The run of a row."""
        return next(table for table in read(RECIPES / self.recipe).tables.values() if table.name == self.table).run(row)

    def records(self, row: str, metric: str = "") -> list[dict[str, str]]:
        """The recorded lines of a row, one per seed, for the metric of quality or another one.

        Raises:
            ValueError: nothing has been recorded.
        """
        path = RECIPES / self.recipe / "results.csv"
        wanted = {"table": self.table, "row": row, "scale": self.scale, "metric": metric or self.metric}
        found = [line for line in results_csv.read(path) if wanted.items() <= line.items() and line["value"]]
        if not found:
            raise ValueError(f"{path}: no {wanted['metric']} of row {row} at scale {self.scale}")
        return found

    def values(self, row: str) -> list[float]:
        """The quality for each seed."""
        return [float(record["value"]) for record in self.records(row)]

    def quality(self, row: str) -> float:
        """The mean quality over the seeds."""
        return mean(self.values(row))

    def interval(self, row: str) -> tuple[float, float]:
        """The 95 % interval of the mean quality; for a single seed, the value itself."""
        values = self.values(row)
        return verdict.interval(values) if len(values) > 1 else (values[0], values[0])

    def parameters(self, row: str) -> int:
        """Stored parameters, embeddings included."""
        return int(self.records(row)[0]["params"])


# Rows without shared blocks.
UNSHARED = ("vanilla", "vanilla_half", "regular_1", "plain", "plain_half", "1,1,1,1-rope", "unshared8-rope")
EXPERIMENTS = (
    Experiment(
        title="Translation, Multi30k German to English",
        recipe="multi30k",
        table="multi30k",
        scale="small",
        metric="BLEU",
        better="higher",
        symbols=5904,
        rows=("vanilla", "ringformer", "vanilla_half", "universal", "cycle_rev"),
    ),
    Experiment(
        title="Language, War and Peace",
        recipe="ilr",
        table="ILR 1",
        scale="long",
        metric="perplexity at 256",
        better="lower",
        symbols=1024,
        rows=("1,1,1,1-rope", "unshared8-rope", "2,2,2,2-rope", "4,2,1,1-rope", "block2-rope"),
    ),
    Experiment(
        title="Characters, tiny Shakespeare",
        recipe="kausik",
        table="Kausik 2",
        scale="small",
        metric="loss, nats",
        better="lower",
        symbols=72,
        rows=("regular_1", "recurrent"),
    ),
    Experiment(
        title="Speech, sequences of spoken digits",
        recipe="takase",
        table="Spoken digits",
        scale="long",
        metric="word errors %",
        better="lower",
        symbols=14,
        rows=("vanilla", "cycle", "universal"),
    ),
    Experiment(
        title="Images, CIFAR-10 (5,000 of its images)",
        recipe="cifar10",
        table="cifar10",
        scale="small-5000",
        metric="top-1 %",
        better="higher",
        symbols=0,
        rows=("plain", "ringformer", "plain_half", "uit", "sret"),
    ),
)
