"""What a comparison writes: runs.csv, comparison.md and comparison.svg.

Differences are paired over seeds. pandas and scipy compute them and their intervals.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import tabulate  # noqa: F401  pandas writes Markdown with it
from matplotlib.figure import Figure
from pandas.core.groupby import DataFrameGroupBy
from scipy import stats

from recurrence.comparison.rows import AS_LARGE, ROWS, TIMED, Row, Score
from recurrence.comparison.runs import Values
from recurrence.files import atomic_write, write_text

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
CONFIDENCE = 0.95
HEADROOM = 3  # standard errors that the gain of depth must exceed
MOST = 0.5  # a larger share of embeddings among the parameters prints a warning
SAME_TIME = 0.03  # a larger difference from the time of `looped` is told
PUBLISHED_EXPONENT = 0.46  # for language models, arXiv:2604.21106
RESULTS = ("updates", "epochs", "seconds", "score", "decoding", "inference", "failure")


@dataclass(frozen=True)
class Gain:
    """By how much one row is better than another, over the seeds that both have."""

    mean: float  # positive if it is better
    low: float | None  # lower end of the 95 % interval; None for one seed
    high: float | None  # upper end; None for one seed
    error: float | None  # standard error of the mean; None for one seed
    seeds: int  # number of seeds


def gain(scores: pd.DataFrame, row: str, over: str, higher_is_better: bool) -> Gain | None:
    """The gain of a row over another one, paired over seeds; None if no seed has both.

    Args:
        scores: one line per seed, one column per row; NaN where a run failed.
        row, over: two columns.
        higher_is_better: whether larger scores are better.
    """
    if not {row, over} <= set(scores.columns):
        return None
    pairs = scores[[row, over]].dropna() * (1 if higher_is_better else -1)
    if pairs.empty:
        return None
    mean = float((pairs[row] - pairs[over]).mean())
    if len(pairs) == 1:
        return Gain(mean, None, None, None, 1)
    error = float((pairs[row] - pairs[over]).sem())
    if error == 0:  # scipy divides by it
        return Gain(mean, mean, mean, 0.0, len(pairs))
    ends = stats.ttest_rel(pairs[row], pairs[over]).confidence_interval(CONFIDENCE)
    return Gain(mean, float(ends.low), float(ends.high), error, len(pairs))


def by_row(runs: pd.DataFrame) -> DataFrameGroupBy:
    """The numbers of the runs, grouped by row."""
    return runs.drop(columns=["seed", "failure"]).groupby("row", sort=False)


def headroom(scores: pd.DataFrame, higher_is_better: bool, passes: float) -> str:
    """Whether unshared depth gains anything here, and if so, how much of it looping recovers, in a sentence.

    r loops are worth r^e layers. With scores linear in the logarithm of depth, e is the gain of `looped` over `once`
    as a share of that of `deep`, both over the seeds that all three rows have. Source: arXiv:2604.21106, which fits
    e = 0.46 to the loss of language models.

    Args:
        scores, higher_is_better: see :func:`gain`.
        passes: r, passes per stored block.
    """
    scores = scores.reindex(columns=["once", "deep", "looped"]).dropna()
    deep, looped = (gain(scores, row, "once", higher_is_better) for row in ("deep", "looped"))
    if deep is None or looped is None:
        return "Whether depth itself gains anything: needs a seed with which looped, once and deep have finished."
    if deep.error is None:
        return "Whether depth itself gains anything: needs two seeds."
    over = f"`deep` over `once`: {deep.mean:.2f}, standard error {deep.error:.2f}"
    if deep.mean <= HEADROOM * deep.error:
        return f"No headroom: depth itself gains nothing here beyond three standard errors ({over})."
    exponent = looped.mean / deep.mean
    return (
        f"Iso-depth exponent {exponent:.2f}: {passes:.3g} loops are worth {passes:.3g}^{exponent:.2f} = "
        f"{passes**exponent:.2g} layers ({over}; published: {PUBLISHED_EXPONENT})."
    )


def table_of(rows: Sequence[Row], results: Mapping[tuple[str, int], Values]) -> pd.DataFrame:
    """One line per run: its row, its seed, the numbers of the row, and the results, which are given by row and seed."""
    lines = []
    for row in rows:
        numbers = {key: value for key, value in vars(row).items() if key not in ("name", "flags")}
        for seed, values in sorted((seed, values) for (name, seed), values in results.items() if name == row.name):
            lines.append({"row": row.name, "seed": seed, **numbers, **{key: values.get(key) for key in RESULTS}})
    return pd.DataFrame(lines)


def write(folder: Path, rows: Sequence[Row], runs: pd.DataFrame, score: Score) -> str:
    """Writes the three files; returns the page."""
    with atomic_write(folder / "runs.csv", newline="") as file:
        runs.dropna(axis="columns", how="all").to_csv(file, index=False, lineterminator="\n")
    page = "\n\n".join([shown(rows, runs, score), *sentences(rows, runs, score)]) + "\n"
    write_text(folder / "comparison.md", page)
    with atomic_write(folder / "comparison.svg") as file:
        picture(runs, score).savefig(file, format="svg")
    return page


def planned(rows: Sequence[Row], score: Score) -> str:
    """The rows before anything is trained, as Markdown."""
    target = rows[0].parameters
    lines = {
        row.name: {
            "": ROWS[row.name][0],
            **_sizes(row, score),
            "parameters beside looped": f"{row.parameters / target - 1:+.2%}",
        }
        for row in rows
    }
    return _markdown(lines)


def warnings(looped: Row) -> list[str]:
    """What to know before anything is trained, a sentence each."""
    share = looped.embedded / looped.parameters
    if share <= MOST:
        return []
    return [
        f"Warning: {looped.embedded:,} of the {looped.parameters:,} parameters of `looped` ({share:.0%}) are "
        "embeddings, of which a loop saves none. With fewer symbols or positions, or wider layers, it saves more."
    ]


def shown(rows: Sequence[Row], runs: pd.DataFrame, score: Score) -> str:
    """The table, as Markdown."""
    lines = {row.name: {**_sizes(row, score), **_results(row.name, runs, score)} for row in rows}
    if not any(line["failed"] for line in lines.values()):
        for line in lines.values():
            del line["failed"]
    return _markdown(lines)


def _sizes(row: Row, score: Score) -> dict[str, str]:
    return {
        "blocks": f"{row.blocks}",
        "passes": f"{row.passes}",
        "stored parameters": f"{row.parameters:,}",
        "MB": f"{row.megabytes:.2f}",
        f"MMAC, {score.example}": f"{row.operations / 1e6:,.1f}",
        **({} if math.isnan(row.rate) else {"rate": f"{row.rate:g}"}),
    }


def _results(name: str, runs: pd.DataFrame, score: Score) -> dict[str, str]:
    groups = by_row(runs)
    mean, deviation, count = (statistic.loc[name] for statistic in (groups.mean(), groups.std(), groups.count()))
    failed = runs[(runs.row == name) & runs.failure.notna()]
    found = gain(by_seed(runs), "looped", name, score.higher_is_better) if name != "looped" else None
    return {
        "training, s": _number(mean.seconds, 0),
        f"{score.use}, s": _number(mean[score.use]),
        score.name: _with_deviation(mean.score, deviation.score),
        "seeds": f"{count['score']:.0f}",
        "looping gains": "" if found is None else interval(found),
        "failed": "; ".join(f"seed {seed}: {why}" for seed, why in zip(failed.seed, failed.failure)),
    }


def sentences(rows: Sequence[Row], runs: pd.DataFrame, score: Score) -> list[str]:
    """One sentence for each control, then what depth itself gains."""
    scores, looped = by_seed(runs), rows[0]
    said = []
    for row in rows[1:]:
        found = gain(scores, "looped", row.name, score.higher_is_better)
        begin = ROWS[row.name][1]
        said.append(f"{begin}: no pair of runs has finished." if found is None else _sentence(begin, found, score))
        if row.name in AS_LARGE and row.parameters != looped.parameters:
            more = row.parameters / looped.parameters - 1
            said[-1] += f" It stores {abs(more):.2%} {'more' if more > 0 else 'less'}."
        if row.name in TIMED and found is not None:
            said[-1] += _other_time(runs, row.name)
    said.append(headroom(scores, score.higher_is_better, looped.passes / looped.blocks))
    return said


def _other_time(runs: pd.DataFrame, timed: str) -> str:
    """By how much the training time of a timed row differs from that of `looped`; nothing if they are about equal."""
    seconds = by_seed(runs, "seconds")
    longer = (seconds[timed] / seconds["looped"]).mean() - 1
    return f" It trained {abs(longer):.0%} {'longer' if longer > 0 else 'shorter'}." if abs(longer) > SAME_TIME else ""


def by_seed(runs: pd.DataFrame, value: str = "score") -> pd.DataFrame:
    """The scores, or another value: one line per seed, one column per row."""
    return runs.assign(**{value: runs[value].astype(float)}).pivot(index="seed", columns="row", values=value)


def picture(runs: pd.DataFrame, score: Score) -> Figure:
    """Score over megabytes and score over training time: a mark per row, and the deviation over seeds."""
    mean, deviation = by_row(runs).mean(), by_row(runs).std()
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for name in mean.index:
        at, spread, style = mean.loc[name], deviation.fillna(0).loc[name], "s" if name == "looped" else "o"
        if math.isnan(at.score):
            continue
        look = dict(fmt=style, label=name, capsize=2)
        left.errorbar(at.megabytes, at.score, spread.score, **look)
        right.errorbar(at.seconds, at.score, spread.score, spread.seconds, **look)
    left.set(xlabel="MB", ylabel=score.name)
    right.set(xlabel="training, s")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    left.legend(fontsize="small")
    return figure


def _sentence(begin: str, found: Gain, score: Score) -> str:
    seeds = NUMBERS[found.seeds] if found.seeds < len(NUMBERS) else str(found.seeds)
    amount = f"{abs(found.mean):.2f}"
    if score.higher_is_better:
        said = f"looping {'gains' if found.mean >= 0 else 'loses'} {amount} {score.name}"
    else:
        said = f"looping {'lowers' if found.mean >= 0 else 'raises'} {score.name} by {amount}"
    if found.low is None:
        return f"{begin} {said} (one seed, so no interval)."
    ends = (found.low, found.high) if found.mean >= 0 else (-found.high, -found.low)
    shown = f"{begin} {said} ({ends[0]:.2f} to {ends[1]:.2f}, {seeds} seeds)."
    return shown if found.low > 0 or found.high < 0 else f"{shown[:-1]}; the interval includes zero."


def interval(found: Gain) -> str:
    """A gain with its interval: `+1.33 (+0.32 to +2.34)`, or `+1.20 (one seed)`."""
    ends = "one seed" if found.low is None else f"{found.low:+.2f} to {found.high:+.2f}"
    return f"{found.mean:+.2f} ({ends})"


def _with_deviation(mean: float, deviation: float) -> str:
    return _number(mean) if math.isnan(deviation) else f"{_number(mean)} ± {deviation:.2f}"


def _number(value: float, digits: int = 2) -> str:
    return "" if math.isnan(value) else f"{value:,.{digits}f}"


def _markdown(lines: Mapping[str, Mapping]) -> str:
    """A table with one line per row."""
    frame = pd.DataFrame.from_dict(lines, orient="index")
    aligned = ["left" if name in ("", "failed") else "right" for name in frame]
    return frame.to_markdown(disable_numparse=True, colalign=("left", *aligned))
