"""The table and the picture of results in README.md, made from the recipes' results.csv and from docs/speed.md.

python docs/results.py    # rewrites the table between its marks, and docs/results.svg
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from recurrence.catalogue import Table

ROOT = Path(__file__).resolve().parents[1]
README, SPEED, PICTURE = ROOT / "README.md", ROOT / "docs" / "speed.md", ROOT / "docs" / "results.svg"


@dataclass(frozen=True)
class Experiment:
    """Rows of one recipe that were trained alike.

    Args:
        title: the task and the test set.
        recipe: a folder of recipes.
        table: in its results.csv.
        scale: at which the rows ran.
        metric: the column of quality in results.csv.
        better: "higher" or "lower".
        rows: names of the rows; the first is the control.
    """

    title: str
    recipe: str
    table: str
    scale: str
    metric: str
    better: str
    rows: tuple[str, ...]

    def records(self, row: str) -> list[dict[str, str]]:
        """What was recorded of a row, one entry per seed."""
        path, wanted = ROOT / "recipes" / self.recipe / "results.csv", (self.table, row, self.scale, self.metric)
        with path.open(encoding="utf-8", newline="") as file:
            found = [
                record
                for record in csv.DictReader(file)
                if (record["table"], record["row"], record["scale"], record["metric"]) == wanted and record["value"]
            ]
        if not found:
            raise ValueError(f"{path}: no {self.metric} of row {row} at scale {self.scale}")
        return found

    def quality(self, row: str) -> float:
        """Mean over the seeds."""
        return mean(float(record["value"]) for record in self.records(row))

    def parameters(self, row: str) -> int:
        """Stored parameters, embeddings included."""
        return int(self.records(row)[0]["params"])


UNSHARED = ("vanilla", "vanilla_half", "regular_1", "plain", "plain_half")  # rows that share nothing
EXPERIMENTS = (
    Experiment(
        *("Translation, Multi30k German to English", "multi30k", "multi30k", "small", "BLEU", "higher"),
        ("vanilla", "ringformer", "vanilla_half", "universal", "cycle_rev"),
    ),
    Experiment(
        *("Language, tiny Shakespeare", "kausik", "Kausik 2", "small", "loss, nats", "lower"),
        ("regular_1", "recurrent"),
    ),
    Experiment(
        *("Speech, sequences of spoken digits", "takase", "Spoken digits", "long", "word errors %", "lower"),
        ("vanilla", "cycle", "universal"),
    ),
    Experiment(
        *("Images, CIFAR-10 (5,000 of its images)", "cifar10", "cifar10", "small-5000", "top-1 %", "higher"),
        ("plain", "ringformer", "plain_half", "uit", "sret"),
    ),
)


def training_step(arch: str) -> str:
    """Time of a training step beside upstream's model, as docs/speed.md has it; empty where it was not measured."""
    tables = re.findall(r"^(\|.+\|)\n\|[-:|]+\|\n((?:\|.+\|\n)+)", SPEED.read_text(encoding="utf-8"), re.MULTILINE)
    for titles, body in tables:
        for line in body.splitlines():
            times = dict(zip(_cells(titles), _cells(line)))
            if line.startswith(f"| `{arch}` |"):
                found = [time for title, time in times.items() if title.startswith("training step")]
                if found:
                    return found[0]
    return ""


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def rows() -> Iterator[list[str]]:
    """A line per model; the task is named on the first of its lines."""
    for experiment in EXPERIMENTS:
        title = f"{experiment.title}: {experiment.metric}, {experiment.better} is better"
        for row in experiment.rows:
            records = experiment.records(row)
            arch = records[0]["arch"]
            quality = f"{experiment.quality(row):.{1 if experiment.better == 'higher' else 2}f}"
            step = "" if row.endswith("_half") else training_step(arch)  # measured at full depth
            yield [title, f"`{arch}`, {row}", f"{experiment.parameters(row):,}", quality, str(len(records)), step]
            title = ""


TABLE = Table(
    "results",
    (
        "task",
        "architecture and row",
        "stored parameters:",
        "quality:",
        "seeds:",
        "time of a training step beside upstream's:",
    ),
    rows,
)


def draw(path: Path) -> None:
    """Quality over stored parameters, a panel per experiment; rows that share nothing are open circles."""
    import matplotlib
    from matplotlib.figure import Figure

    style = {"font.size": 8, "axes.grid": True, "grid.alpha": 0.3, "svg.fonttype": "none", "svg.hashsalt": "results"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9, 2.6), layout="constrained")
        for axes, experiment in zip(figure.subplots(1, len(EXPERIMENTS)), EXPERIMENTS):
            points = [(experiment.parameters(row) / 1e6, experiment.quality(row), row) for row in experiment.rows]
            for index, (millions, quality, row) in enumerate(points):
                axes.plot(millions, quality, "o", color="#0072B2", fillstyle="none" if row in UNSHARED else "full")
                beside = (0, -12 if index % 2 else 6)  # labels above and below by turns
                axes.annotate(row, (millions, quality), beside, textcoords="offset points", ha="center")
            axes.set_title(experiment.title.split(",")[0])
            axes.set_xlabel("stored parameters, millions")
            axes.set_ylabel(experiment.metric)
            axes.margins(0.3)
            axes.set_xlim(0, 1.25 * max(point[0] for point in points))
            if experiment.better == "lower":
                axes.invert_yaxis()
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    README.write_text(TABLE.within(README.read_text(encoding="utf-8")), encoding="utf-8")
    draw(PICTURE)


if __name__ == "__main__":
    main()
