"""Draw how the learnable residual coefficients go through training (SReT, Figure 6).

    python recipes/figures/coefficients.py RUN/summary.csv --output coefficients.svg       (of train_image.py)
    python recipes/figures/coefficients.py RUN/train.log --output coefficients.svg         (fairseq, --log-format json)
    python recipes/figures/coefficients.py RUN/checkpoints/checkpoint?.pt --output coefficients.svg    (either)

A panel for each stack of passes and each kind of sublayer; a colour for each stored block (of a projection for each
pass), the first dark, the last light; full lines weigh the stream, broken ones the branch. With --first-block one
panel, as the paper has it: the six of the first block and of the projection behind its first pass. Beside OUTPUT lie
the numbers, as CSV.
"""

import re
from collections import defaultdict
from pathlib import Path

import matplotlib
from checkpoints import progress, weights
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pictures import COLOURS, FEW, page, parser, save

from recurrence.analysis.coefficients import Coefficient, coefficients
from recurrence.analysis.logs import points

Evolution = dict[Coefficient, dict[float, float]]
ORDER = ("attention", "cross-attention", "FFN", "projection", "sublayer")


def from_log(log: Path) -> tuple[str, Evolution]:
    """What a log's time is counted in, and each coefficient over it."""
    found: Evolution = defaultdict(dict)
    unit, name = ("epochs", "epoch") if log.suffix == ".csv" else ("updates", "updates")
    for point in points(log, "train_inner"):
        for which, value in coefficients(point).items():
            found[which][point[name]] = value
    return unit, found


def from_checkpoints(paths: list[Path]) -> tuple[str, Evolution]:
    """The same of checkpoints of one training, in any order.

    Raises:
        ValueError: if a file is no checkpoint, or they come from different trainers.
    """
    found: Evolution = defaultdict(dict)
    times = [progress(path) for path in paths]
    if len({unit for unit, _ in times}) > 1:
        raise ValueError(f"{paths[-1]}: must come from the same trainer as {paths[0]}")
    for path, (_, time) in zip(paths, times):
        for which, value in coefficients(weights(path)).items():
            found[which][time] = value
    return times[0][0], found


def evolution(paths: list[Path]) -> tuple[str, Evolution]:
    """What time is counted in, and each coefficient over it, from one log or any number of checkpoints.

    Raises:
        ValueError: if there is no coefficient, or what :func:`from_log` and :func:`from_checkpoints` raise.
    """
    is_log = len(paths) == 1 and paths[0].suffix in (".csv", ".log")
    unit, found = from_log(paths[0]) if is_log else from_checkpoints(paths)
    if not found:
        raise ValueError(f"{paths[0]}: has no residual coefficients (which lrc=True or recursive_* give a model)")
    return unit, found


def of_first_block(found: Evolution) -> Evolution:
    """The coefficients of the first stored block of the first stack, and of the projection behind its first pass."""
    first = min(which.stack for which in found)
    return {which: line for which, line in found.items() if (which.stack, which.index) == (first, 0)}


def draw_in_one_panel(unit: str, found: Evolution, path: Path) -> None:
    """A colour for each sublayer of one block."""
    figure = page(2.8)
    axes = figure.subplots()
    for which, line in found.items():
        style = dict(color=COLOURS[ORDER.index(which.sublayer)], linestyle="-" if which.role == "identity" else "--")
        marker = "." if len(line) <= FEW else None
        axes.plot(*zip(*sorted(line.items())), label=f"{which.sublayer}, {which.role}", marker=marker, **style)
    axes.set(xlabel=unit, ylabel="coefficient")
    axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside right upper")
    save_numbers(figure, path, unit, found)


def draw(unit: str, found: Evolution, path: Path) -> None:
    """A grid of panels, kinds of sublayers by stacks."""
    kinds = [kind for kind in ORDER if any(which.sublayer == kind for which in found)]
    stacks = sorted({which.stack for which in found}, reverse=any("encoder" in which.stack for which in found))
    figure = page(0.6 + 1.5 * len(kinds))
    panels = figure.subplots(len(kinds), len(stacks), sharex=True, sharey=True, squeeze=False)
    for which, line in found.items():
        same = {other.index for other in found if other[:2] == which[:2]}
        shade = 0.35 + 0.38 * sorted(same).index(which.index) / max(len(same) - 1, 1)
        axes = panels[kinds.index(which.sublayer), stacks.index(which.stack)]
        colour, style = matplotlib.colormaps["viridis"](shade), "-" if which.role == "identity" else "--"
        marker = "." if len(line) <= FEW else None
        axes.plot(*zip(*sorted(line.items())), color=colour, linestyle=style, linewidth=1, marker=marker, markersize=3)
    for axes in (axes for axes in panels.flat if not axes.has_data()):
        axes.grid(False)
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", va="center")
    for axes, kind in zip(panels[:, 0], kinds):
        axes.set_ylabel(f"coefficient,\n{kind}")
    for axes, stack in zip(panels[0], stacks):
        axes.set_title(re.sub(r"stages\.(\d+)", lambda found: f"stage {1 + int(found[1])}", stack))
    for axes in panels[-1]:
        axes.set_xlabel(unit)
        axes.xaxis.get_major_locator().set_params(integer=True)
    lines = [Line2D([], [], color="black", linestyle=style) for style in ("-", "--")]
    figure.legend(lines, ["identity", "branch"], loc="outside lower center", ncols=2)
    save_numbers(figure, path, unit, found)


def save_numbers(figure: Figure, path: Path, unit: str, found: Evolution) -> None:
    """The picture with a line for each coefficient and time."""
    rows = [
        (*which[:2], which.index + 1, which.role, time, value)
        for which in found
        for time, value in found[which].items()
    ]
    save(figure, path, ["stack", "sublayer", "block or pass", "role", unit, "coefficient"], rows)


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__)
    command_line.add_argument("paths", type=Path, nargs="+", metavar="LOG|CHECKPOINT", help="one log, or checkpoints")
    command_line.add_argument("--first-block", action="store_true", help="those of the first block alone, in one panel")
    options = command_line.parse_args(arguments)
    try:
        unit, found = evolution(options.paths)
    except (OSError, ValueError) as error:
        command_line.error(str(error))
    if options.first_block:
        draw_in_one_panel(unit, of_first_block(found), options.output)
    else:
        draw(unit, found, options.output)


if __name__ == "__main__":
    main()
