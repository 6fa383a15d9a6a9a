"""When runs with several seeds confirm a claim about two rows. This is the only place that decides it.

A claim allows the difference between the rows a range, for example above 0. The rows are compared seed by seed, and the
mean difference gets a 95 % interval over the seeds (Student's t). The claim is

  confirmed      if at least three seeds have run and the interval is within the range
  contradicted   if at least three seeds have run and the interval is outside the range; of several comparisons, one is
                 enough, so their intervals are widened for all to hold together (Bonferroni)
  not run        if no seed has run in both rows
  undecided      otherwise
"""

from collections.abc import Sequence
from math import inf, sqrt
from statistics import mean, stdev

VERDICTS = ("confirmed", "contradicted", "undecided", "not run")
SEEDS = 3
LEVEL = 0.95


def allowed(says: str, margin: float) -> tuple[float, float]:
    """The open range that a claim allows for the first row's lead over the second.

    Raises:
        ValueError: `says` is not one of the three words.
    """
    ranges = {"better": (margin, inf), "no worse": (-margin, inf), "equal": (-margin, margin)}
    if says not in ranges:
        raise ValueError(f"says {says!r}; must be one of: {', '.join(ranges)}")
    return ranges[says]


def interval(differences: Sequence[float], comparisons: int = 1) -> tuple[float, float]:
    """The 95 % interval of the mean difference; unbounded with fewer than two seeds.

    Args:
        differences: one per seed.
        comparisons: number of intervals that hold together at this level.
    """
    count = len(differences)
    if count < 2:
        return -inf, inf
    from scipy.stats import t

    half = t.isf((1 - LEVEL) / comparisons / 2, count - 1) * stdev(differences) / sqrt(count)
    return mean(differences) - half, mean(differences) + half


def verdict(differences: Sequence[float], says: str = "better", margin: float = 0.0, comparisons: int = 1) -> str:
    """The verdict on one comparison.

    Args:
        differences: the first row's lead in each seed, positive where it is better.
        says, margin: see :func:`allowed`.
        comparisons: number of comparisons of the claim.
    """
    if not differences:
        return "not run"
    (low, high), (bottom, top) = interval(differences), allowed(says, margin)
    if len(differences) < SEEDS:
        return "undecided"
    if bottom < low and high < top:
        return "confirmed"
    low, high = interval(differences, comparisons)
    return "contradicted" if high < bottom or top < low else "undecided"


def together(verdicts: Sequence[str]) -> str:
    """The verdict on a claim with several comparisons: all must be confirmed; one contradicted is enough."""
    if "contradicted" in verdicts:
        return "contradicted"
    return verdicts[0] if len(set(verdicts)) == 1 else "undecided"
