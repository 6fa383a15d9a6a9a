"""The depth curve of a checkpoint: score, time and agreement with the full depth at each number of passes.

`python -m fairseq_plugin.depth` and `python -m timm_plugin.depth` choose the depths and run the model.
"""

import argparse
import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from recurrence.depth import passes_at
from recurrence.files import atomic_write
from recurrence.loop import Loop


class Setting(NamedTuple):
    """A depth to try: its name, such as "4" or "encoder 4", and the passes of each loop by the name of the loop."""

    name: str
    passes: dict[str, int]


class Evaluation(NamedTuple):
    """What a model gives at one depth: the score on the test set, seconds per example, and an output per example.

    If the score is the percentage of outputs that are right, `right` says which are.
    """

    score: float
    seconds: float
    outputs: Sequence
    right: Sequence[bool] | None = None


class Point(NamedTuple):
    """A depth's name, its score, seconds per example, and the fraction of outputs that equal the full depth's.

    `margin` is half the 95 % interval of the difference of its score from the full depth's, None if that is unknown.
    """

    depth: str
    score: float
    seconds: float
    agreement: float
    margin: float | None = None


def depths(loop: Loop, unit: int = 1, step: int = 1) -> list[int]:
    """The depths, up to the full one, at which the checkpoint of a loop runs.

    Args:
        loop: at its full depth.
        unit: number of passes that a depth counts as one.
        step: every depth is a multiple of it, as in :func:`recurrence.elastic.training_depth`.
    """
    full = loop.passes // unit
    return [depth for depth in range(step, full + 1, step) if passes_at(loop.order, depth * unit) is not None]


def only_full_depth(loops: dict[str, Loop]) -> ValueError:
    """The error for models that run at no other depth."""
    orders = ", ".join(" ".join(map(str, loop.order)) for loop in loops.values())
    rule = "must repeat its blocks as SEQUENCE, CYCLE or CYCLE (REV) do, or in one loop, to run at other depths"
    return ValueError(f"the order {orders}: {rule}")


def safe_range(scores: dict[int, float], tolerance: float, higher_is_better: bool = True) -> tuple[int, int]:
    """The longest range of depths that ends with the full one and has no score worse by more than the tolerance.

    `scores` has the score at each depth, of which the largest is the full one.
    """
    full = smallest = max(scores)
    for depth in sorted(scores, reverse=True):
        loss = scores[full] - scores[depth]
        if (loss if higher_is_better else -loss) > tolerance:
            break
        smallest = depth
    return smallest, full


def measure(settings: Sequence[Setting], evaluate: Callable[[Mapping[str, int]], Evaluation]) -> list[Point]:
    """Evaluates a model at each setting, the last of which must be the full depth: one point per setting.

    Args:
        settings: the depths to try.
        evaluate: runs the model on the test set, with the given number of passes of each loop, by name.
    """
    evaluate(settings[-1].passes)  # the first call also allocates and compiles, which should count at no depth
    evaluations = [evaluate(setting.passes) for setting in settings]
    full = evaluations[-1]
    points = []
    for setting, (score, seconds, outputs, right) in zip(settings, evaluations):
        agreement = sum(a == b for a, b in zip(outputs, full.outputs)) / len(outputs)
        margin = None if right is None or full.right is None else margin_of(right, full.right)
        points.append(Point(setting.name, score, seconds, agreement, margin))
    return points[:-1] + [points[-1]._replace(margin=None)]


def margin_of(right: Sequence[bool], full: Sequence[bool]) -> float:
    """Half the 95 % interval, in percent, of the difference of two accuracies on the same examples.

    Source: Agresti and Min (2005), Simple improved confidence intervals for comparing matched proportions, which adds
    half an example to each of the four cells; so that equal outputs on few examples do not have an interval of 0.
    """
    better, worse = (sum(a > b for a, b in zip(*pair)) for pair in ((right, full), (full, right)))
    number = len(full) + 2
    return 196 * math.sqrt(better + worse + 1 - (better - worse) ** 2 / number) / number


def safe_ranges(
    settings: Sequence[Setting], points: Sequence[Point], tolerance: float, higher_is_better: bool
) -> dict[str, tuple[int, int]]:
    """The safe depths of each loop that was varied, see :func:`safe_range`."""
    full, ranges = settings[-1].passes, {}
    for name in full:
        scores = {
            passes[name]: point.score
            for (_, passes), point in zip(settings, points)
            if passes == full or passes[name] != full[name]
        }
        if len(scores) > 1:
            ranges[name] = safe_range(scores, tolerance, higher_is_better)
    return ranges


def add_options(parser: argparse.ArgumentParser) -> Callable[..., argparse.Action]:
    """Adds a group with the options of :func:`report`; returns what adds further ones to it."""
    add = parser.add_argument_group("depth curve").add_argument
    add("--output", type=Path, metavar="FILE", help="also write the curve as CSV")
    add(
        "--tolerance",
        type=_points,
        default=0.3,
        metavar="T",
        help="a depth is safe if its score is worse than the full depth's by at most T points (default: 0.3)",
    )
    return add


def _points(text: str) -> float:
    try:
        points = float(text)
    except ValueError:
        points = math.nan
    if not 0 <= points < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number >= 0 and < inf")
    return points


def report(
    args: argparse.Namespace,
    settings: Sequence[Setting],
    evaluate: Callable[[Mapping[str, int]], Evaluation],
    score: str,
    higher_is_better: bool,
) -> None:
    """Measures a curve, prints it and the safe depths of each loop, and saves it to `--output`.

    Args:
        args: the options of :func:`add_options`.
        settings, evaluate: see :func:`measure`.
        score: name of the score.
        higher_is_better: whether larger scores are better.

    Raises:
        ValueError: if there is no folder for `--output`.
    """
    if args.output is not None and not args.output.parent.is_dir():
        raise ValueError(f"--output={args.output}: must be in a folder that exists")
    points = measure(settings, evaluate)
    print(table(points, score))
    at_worst, at_best = (
        safe_ranges(settings, [shifted(point, sign) for point in points], args.tolerance, higher_is_better)
        for sign in ((-1, 1) if higher_is_better else (1, -1))
    )
    for name, (smallest, largest) in at_worst.items():
        print(f"{name}: safe from {smallest} to {largest} passes")
        if (least := at_best[name][0]) < smallest:
            print(f"{name}: may be safe from {least} passes; too few examples to measure {args.tolerance} points")
    if args.output is not None:
        save(points, args.output)


def shifted(point: Point, sign: int) -> Point:
    """The point with the highest (1) or the lowest (-1) score within its margin."""
    return point._replace(score=point.score + sign * (point.margin or 0))


def table(points: Iterable[Point], score: str) -> str:
    """The curve as text."""
    lines = [f"{'depth':<12}{score:>12}{'ms each':>12}{'agreement':>12}"]
    for point in points:
        margin = "" if point.margin is None else f"  ± {point.margin:.2f} from the full depth"
        numbers = f"{point.score:>12.2f}{1000 * point.seconds:>12.1f}{point.agreement:>12.1%}"
        lines.append(f"{point.depth:<12}{numbers}{margin}")
    return "\n".join(lines)


def save(points: Sequence[Point], path: Path) -> None:
    """Writes the curve as CSV."""
    with atomic_write(path, newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Point._fields)
        writer.writerows(points)
