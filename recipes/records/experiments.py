"""Rows that were trained alike and are shown beside each other: in README.md and in the report's first pictures."""

import csv
from dataclasses import dataclass
from statistics import mean

import verdict
from rows import RECIPES, Run, read


@dataclass(frozen=True)
class Experiment:
    """Rows of one table that were trained alike.

    Args:
        title: the task and the test set.
        recipe: a folder of recipes.
        table: its name in results.csv.
        scale: at which the rows ran.
        metric: the column of quality in results.csv.
        better: "higher" or "lower".
        symbols: of the vocabulary, which is part of the work; 0 for images.
        rows: their names; the first is the control.
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
        """The first word of the title, in small letters."""
        return self.title.split(",")[0].lower()

    def run(self, row: str) -> Run:
        """The row as tables.toml has it."""
        return next(table for table in read(RECIPES / self.recipe).tables.values() if table.name == self.table).run(row)

    def records(self, row: str, metric: str = "") -> list[dict[str, str]]:
        """What was recorded of a row, one entry per seed, by the metric of quality or another.

        Raises:
            ValueError: there is nothing.
        """
        path = RECIPES / self.recipe / "results.csv"
        wanted = (self.table, row, self.scale, metric or self.metric)
        with path.open(encoding="utf-8", newline="") as file:
            found = [
                record
                for record in csv.DictReader(file)
                if (record["table"], record["row"], record["scale"], record["metric"]) == wanted and record["value"]
            ]
        if not found:
            raise ValueError(f"{path}: no {wanted[-1]} of row {row} at scale {self.scale}")
        return found

    def values(self, row: str) -> list[float]:
        """The quality of each seed."""
        return [float(record["value"]) for record in self.records(row)]

    def quality(self, row: str) -> float:
        """Mean over the seeds."""
        return mean(self.values(row))

    def interval(self, row: str) -> tuple[float, float]:
        """That of the mean; the value itself of a single seed."""
        values = self.values(row)
        return verdict.interval(values) if len(values) > 1 else (values[0], values[0])

    def parameters(self, row: str) -> int:
        """Stored parameters, embeddings included."""
        return int(self.records(row)[0]["params"])


# Rows that share nothing.
UNSHARED = ("vanilla", "vanilla_half", "regular_1", "plain", "plain_half", "1,1,1,1-rope", "unshared8-rope")
EXPERIMENTS = (
    Experiment(
        *("Translation, Multi30k German to English", "multi30k", "multi30k", "small", "BLEU", "higher", 5904),
        ("vanilla", "ringformer", "vanilla_half", "universal", "cycle_rev"),
    ),
    Experiment(
        *("Language, War and Peace", "ilr", "ILR 1", "long", "perplexity at 256", "lower", 1024),
        ("1,1,1,1-rope", "unshared8-rope", "2,2,2,2-rope", "4,2,1,1-rope", "block2-rope"),
    ),
    Experiment(
        *("Characters, tiny Shakespeare", "kausik", "Kausik 2", "small", "loss, nats", "lower", 72),
        ("regular_1", "recurrent"),
    ),
    Experiment(
        *("Speech, sequences of spoken digits", "takase", "Spoken digits", "long", "word errors %", "lower", 14),
        ("vanilla", "cycle", "universal"),
    ),
    Experiment(
        *("Images, CIFAR-10 (5,000 of its images)", "cifar10", "cifar10", "small-5000", "top-1 %", "higher", 0),
        ("plain", "ringformer", "plain_half", "uit", "sret"),
    ),
)
