"""When runs of several seeds bear out what is claimed of the difference between two rows: the one rule, written here.

A claim allows the difference a range, such as above 0. The rows are compared seed by seed, and the mean difference has
a 95 % interval over the seeds (Student's t). The claim is

  confirmed      by at least three seeds, if the interval lies within the range
  contradicted   by at least three seeds, if the interval lies outside it
  undecided      in all other cases
  not run        if no seed has run in both rows
"""

from collections.abc import Sequence
from math import inf, sqrt
from statistics import mean, stdev

VERDICTS = ("confirmed", "contradicted", "undecided", "not run")
SEEDS = 3
LEVEL = 0.95


def allowed(says: str, margin: float) -> tuple[float, float]:
    """The range of the first row's lead over the second that a claim allows, both ends left out.

    Raises:
        ValueError: if `says` is none of the three.
    """
    ranges = {"better": (margin, inf), "no worse": (-margin, inf), "equal": (-margin, margin)}
    if says not in ranges:
        raise ValueError(f"says {says!r}; must be one of: {', '.join(ranges)}")
    return ranges[says]


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Where the mean difference lies in 95 of 100 cases; unbounded with fewer than two seeds."""
    count = len(differences)
    if count < 2:
        return -inf, inf
    from scipy.stats import t

    half = t.ppf((1 + LEVEL) / 2, count - 1) * stdev(differences) / sqrt(count)
    return mean(differences) - half, mean(differences) + half


def verdict(differences: Sequence[float], says: str = "better", margin: float = 0.0) -> str:
    """What the seeds' differences, positive where the first row is better, say of one comparison."""
    if not differences:
        return "not run"
    (low, high), (bottom, top) = interval(differences), allowed(says, margin)
    if len(differences) < SEEDS:
        return "undecided"
    if bottom < low and high < top:
        return "confirmed"
    return "contradicted" if high < bottom or top < low else "undecided"


def together(verdicts: Sequence[str]) -> str:
    """The verdict on a claim of several comparisons: each has to be confirmed, one that is contradicted is enough."""
    if "contradicted" in verdicts:
        return "contradicted"
    return verdicts[0] if len(set(verdicts)) == 1 else "undecided"
