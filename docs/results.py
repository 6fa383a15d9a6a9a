"""Generates the table of results in docs/which-model.md from the recipes' results.

python docs/results.py    # rewrites the table between its marks
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from recurrence.comparison.report import gain, interval

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "recipes" / "records"))

from results_csv import read  # noqa: E402
from tables import with_table  # noqa: E402

PAGE = ROOT / "docs" / "which-model.md"
COLUMNS = ("task", "model", "stored parameters:", "quality:", "seeds:", "lead of the first row:")


@dataclass(frozen=True)
class Experiment:
    """Rows that were trained alike; the first one is the loop, with which the others are compared."""

    title: str
    folder: str
    table: str
    scale: str
    metric: str
    decimals: int
    rows: dict[str, str]  # what each row is, by its name in the recipe
    higher_is_better: bool = True


EXPERIMENTS = (
    Experiment(
        "Translation, [Multi30k](../recipes/multi30k/RESULTS.md) German to English: BLEU, higher is better",
        *("multi30k", "multi30k", "small", "BLEU", 1),
        {
            "ringformer": "RingFormer, a loop of 4 + 4 passes",
            "once": "one layer on each side, run once",
            "storage": "the same, widened to the loop's size",
            "time": "the widened layer, trained for the loop's time",
            "narrow_tuned": "a layer for each pass, narrowed to the loop's size, at its own learning rate",
            "vanilla_half": "half as many layers",
            "vanilla": "a layer for each pass",
        },
    ),
    Experiment(
        "[Pronunciation](../recipes/pronounce/RESULTS.md) of English words: wrong words in %, lower is better",
        *("pronounce", "pronunciation", "small", "wrong words %", 1),
        {
            "ringformer_small": "RingFormer, a loop of 4 + 4 passes",
            "storage": "one layer on each side, widened to the loop's size, run once",
            "narrow": "a layer for each pass, narrowed to the loop's size, at its own learning rate",
            "narrow_time": "the same, trained for the loop's time",
            "half_time": "two layers on each side, narrowed to the loop's size, trained for the loop's time",
            "cycle_time": "CYCLE, the same layers run twice, trained for the loop's time",
            "deep": "a layer for each pass",
        },
        higher_is_better=False,
    ),
    Experiment(
        "Language, [War and Peace](../recipes/ilr/RESULTS.md), rotary positions: perplexity at 256, lower is better",
        *("ilr", "ILR 1", "long", "perplexity at 256", 2),
        {
            "2,2,2,2-rope": "four layers, each run twice",
            "1,1,1,1-rope": "four layers, each run once",
            "unshared8-rope": "eight layers",
        },
        higher_is_better=False,
    ),
    Experiment(
        "Images, [CIFAR-10](../recipes/cifar10/RESULTS.md), two epochs: top-1 %, higher is better",
        *("cifar10", "cifar10", "small", "top-1 %", 1),
        {
            "ringformer": "RingFormer-ViT, a loop of six passes",
            "once": "one layer, run once",
            "storage": "the same, widened to the loop's size",
            "narrow": "a layer for each pass, narrowed to the loop's size",
            "plain": "a layer for each pass",
        },
    ),
)


def rows() -> Iterator[list[str]]:
    """One row per model; the first row of a task names it."""
    for experiment in EXPERIMENTS:
        title, (loop, *_) = experiment.title, experiment.rows
        runs = _runs(experiment)
        scores = runs.pivot(index="seed", columns="row", values="score")
        for name, model in experiment.rows.items():
            first = runs[runs["row"] == name].iloc[0]
            found = None if name == loop else gain(scores, loop, name, experiment.higher_is_better)
            yield [
                title,
                model,
                f"{int(first['params']):,}",
                f"{scores[name].mean():.{experiment.decimals}f}",
                f"{scores[name].count()}",
                "" if found is None else interval(found),
            ]
            title = ""


def _runs(experiment: Experiment) -> pd.DataFrame:
    """The runs of an experiment that have a score."""
    runs = pd.DataFrame(read(ROOT / "recipes" / experiment.folder / "results.csv"))
    runs = runs[runs["row"].isin(experiment.rows) & (runs["value"] != "")]
    for name in ("table", "scale", "metric"):
        runs = runs[runs[name] == getattr(experiment, name)]
    return runs.assign(score=runs["value"].astype(float))


def within(document: str) -> str:
    """The document with its table rewritten."""
    return with_table(document, "results", COLUMNS, rows())


if __name__ == "__main__":
    PAGE.write_text(within(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
