"""Differences paired over seeds, their intervals, and what depth itself gains. pandas and scipy compute them."""

from dataclasses import dataclass

import pandas as pd
from scipy import stats

CONFIDENCE = 0.95
HEADROOM = 3  # standard errors by which depth must gain
PUBLISHED_EXPONENT = 0.46  # of language models, arXiv:2604.21106


@dataclass(frozen=True)
class Gain:
    """By how much one row is better than another, over the seeds that both have.

    Args:
        mean: positive if it is better.
        low, high: ends of the 95 % interval; None for one seed.
        error: standard error of the mean; None for one seed.
        seeds: how many.
    """

    mean: float
    low: float | None
    high: float | None
    error: float | None
    seeds: int


def gain(scores: pd.DataFrame, row: str, over: str, higher_is_better: bool) -> Gain | None:
    """The gain of a row over another one, paired over seeds.

    Args:
        scores: one line per seed, one column per row; NaN where a run failed.
        row, over: two columns.
        higher_is_better: whether larger scores are better.

    Returns:
        None if no seed has both.
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
    interval = stats.ttest_rel(pairs[row], pairs[over]).confidence_interval(CONFIDENCE)
    return Gain(mean, float(interval.low), float(interval.high), error, len(pairs))


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation over seeds of every number, and how many seeds have a score: one line per row."""
    groups = runs.drop(columns=["seed", "failure"]).groupby("row", sort=False)
    return groups.agg(["mean", "std", "count"])


def headroom(scores: pd.DataFrame, higher_is_better: bool, passes: float) -> str:
    """Whether unshared depth gains anything here, and if so, how much of it looping recovers, in a sentence.

    r loops are worth r^e layers. With scores linear in the logarithm of depth, e is the gain of `looped` over `once`
    as a share of that of `deep`. Source: arXiv:2604.21106, which fits e = 0.46 to the loss of language models.

    Args:
        scores, higher_is_better: see :func:`gain`.
        passes: r, passes per stored block.
    """
    deep, looped = (gain(scores, row, "once", higher_is_better) for row in ("deep", "looped"))
    if deep is None or looped is None:
        return "Whether depth itself gains anything: needs the rows once and deep."
    if deep.error is None:
        return "Whether depth itself gains anything: needs two seeds."
    over = f"`deep` over `once`: {deep.mean:.2f}, standard error {deep.error:.2f}"
    if deep.mean <= HEADROOM * deep.error:
        return f"No headroom: depth itself gains nothing here ({over})."
    exponent = looped.mean / deep.mean
    return (
        f"Iso-depth exponent {exponent:.2f}: {passes:.3g} loops are worth {passes:.3g}^{exponent:.2f} = "
        f"{passes**exponent:.2g} layers ({over}; published: {PUBLISHED_EXPONENT})."
    )
