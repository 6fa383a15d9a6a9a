"""The depth curve: what a checkpoint is worth at each number of passes, as a table, as CSV and as a picture."""

import argparse
import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from torch import nn

from recurrence.depth import passes_at
from recurrence.elastic import at_depths
from recurrence.loop import Loop

COLUMNS = ("depth", "score", "seconds", "agreement")
PICTURES = (".svg", ".png")

# What a model gives at some depth: its score, the seconds that an example took, and its outputs to compare.
Found = tuple[float, float, Sequence]
# A depth by its name, and the passes of every loop by the loop's.
Tried = tuple[str, dict[str, int]]


@dataclass(frozen=True)
class Point:
    """One number of passes.

    Args:
        depth: its name: "4", or "encoder 4" where the other side runs all its passes.
        score: on the test set.
        seconds: for one sentence, text or image.
        agreement: the share of outputs that are those of the full depth.
    """

    depth: str
    score: float
    seconds: float
    agreement: float


def loops_of(model: nn.Module) -> dict[str, Loop]:
    """The loops over depth, by the name that each has in the state dict."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Loop)}


def depths(loop: Loop, unit: int = 1) -> list[int]:
    """The numbers of passes up to all of them at which the checkpoint of a loop runs, counted in units of passes."""
    most = loop.passes // unit
    return [depth for depth in range(1, most + 1) if passes_at(loop.order, depth * unit) is not None]


def safe_range(scores: dict[int, float], tolerance: float, higher_is_better: bool = True) -> tuple[int, int]:
    """The smallest and the largest depth between which no score is worse than that of the full depth by more.

    Args:
        scores: of each depth; the largest is the full one.
        tolerance: in points of the score.
        higher_is_better: which way scores go.
    """
    full = smallest = max(scores)
    for depth in sorted(scores, reverse=True):
        loss = scores[full] - scores[depth]
        if (loss if higher_is_better else -loss) > tolerance:
            break
        smallest = depth
    return smallest, full


def measure(loops: dict[str, Loop], tried: Sequence[Tried], found: Callable[[], Found]) -> list[Point]:
    """The curve, its points in the order of the depths tried, the last of which is the full one."""
    found()  # once more for nothing: what is made at the first call should count at no depth
    results = []
    for _, depths in tried:
        with at_depths({loops[name]: depth for name, depth in depths.items()}):
            results.append(found())
    full = results[-1][2]
    agreements = [sum(a == b for a, b in zip(outputs, full)) / len(full) for _, _, outputs in results]
    return [
        Point(name, score, seconds, agreement)
        for (name, _), (score, seconds, _), agreement in zip(tried, results, agreements)
    ]


def safe(tried: Sequence[Tried], points: Sequence[Point], tolerance: float, higher: bool) -> dict[str, tuple[int, int]]:
    """Of each loop that was varied the depths that are safe, see :func:`safe_range`."""
    full, ranges = tried[-1][1], {}
    for name in full:
        scores = {
            depths[name]: point.score
            for (_, depths), point in zip(tried, points)
            if depths == full or depths[name] != full[name]
        }
        if len(scores) > 1:
            ranges[name] = safe_range(scores, tolerance, higher)
    return ranges


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds what becomes of a curve."""
    add = parser.add_argument_group("depth curve").add_argument
    add("--output", type=_output, metavar="FILE", help="CSV, or a picture (.svg, .png) with the CSV beside it")
    add("--write", action="store_true", help="note the safe depths in the checkpoint; loading it at others warns")
    add(
        "--tolerance",
        type=float,
        default=0.3,
        metavar="T",
        help="a depth is safe if its score is worse than the full depth's by at most T points (default: 0.3)",
    )


def _output(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".csv", *PICTURES):
        raise argparse.ArgumentTypeError(f"{text!r}: must end in .csv, .svg or .png")
    return path


def table(points: Iterable[Point], score: str) -> str:
    """The curve as text."""
    lines = [f"{'depth':<12}{score:>12}{'ms each':>12}{'agreement':>12}"]
    for point in points:
        lines.append(f"{point.depth:<12}{point.score:>12.2f}{1000 * point.seconds:>12.1f}{point.agreement:>12.1%}")
    return "\n".join(lines)


def save(points: Sequence[Point], score: str, path: Path) -> None:
    """Writes the curve as CSV, and as a picture where the name asks for one.

    Raises:
        ValueError: if there is no matplotlib to draw it.
    """
    with path.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(astuple(point) for point in points)
    if path.suffix in PICTURES:
        _draw(points, score, path)


def _draw(points: Sequence[Point], score: str, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(f"--output {path}: a picture needs matplotlib, as the extra [demo] has it") from None
    figure = Figure(figsize=(6.5, 2.4), layout="constrained")
    names = [point.depth for point in points]
    shown = {
        score: [point.score for point in points],
        "milliseconds each": [1000 * point.seconds for point in points],
        "agreement with full depth": [point.agreement for point in points],
    }
    for axes, (title, values) in zip(figure.subplots(1, len(shown)), shown.items()):
        axes.plot(names, values, marker="o", color="#0072B2")
        axes.set(title=title, xlabel="passes")
        axes.tick_params(axis="x", labelrotation=90 if max(map(len, names)) > 2 else 0)
        axes.grid(alpha=0.3)
    figure.savefig(path)
