"""Plot the learnable residual coefficients over the course of training (SReT, Figure 6).

    python recipes/figures/coefficients.py RUN/summary.csv --output coefficients.svg       (of train_image.py)
    python recipes/figures/coefficients.py RUN/train.log --output coefficients.svg         (fairseq, --log-format json)
    python recipes/figures/coefficients.py RUN/checkpoints/checkpoint?.pt --output coefficients.svg    (either)

Draws one panel per stack of passes and kind of sublayer, and one colour per stored block (for projections: per pass),
from dark for the first to light for the last. Solid lines are the coefficients of the residual stream (identity),
dashed lines those of the branch. --first-block draws a single panel, as the paper does, with the six coefficients of
the first block and of the projection after its first pass. The numbers are saved next to the picture, as CSV.
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
ORDER = ("attention", "token mixing", "cross-attention", "FFN", "projection")


def from_log(log: Path) -> tuple[str, Evolution]:
    """The unit of time of a log, and each coefficient over time."""
    lines: Evolution = defaultdict(dict)
    unit, name = ("epochs", "epoch") if log.suffix == ".csv" else ("updates", "updates")
    for point in points(log, "train_inner"):
        for coefficient, value in coefficients(point).items():
            lines[coefficient][point[name]] = value
    return unit, lines


def from_checkpoints(paths: list[Path]) -> tuple[str, Evolution]:
    """The same from checkpoints of one training, in any order.

    Raises:
        ValueError: if a file is not a checkpoint, or the files come from different trainers.
    """
    lines: Evolution = defaultdict(dict)
    times = [progress(path) for path in paths]
    if len({unit for unit, _ in times}) > 1:
        raise ValueError(f"{paths[-1]}: must come from the same trainer as {paths[0]}")
    for path, (_, time) in zip(paths, times):
        for coefficient, value in coefficients(weights(path)).items():
            lines[coefficient][time] = value
    return times[0][0], lines


def evolution(paths: list[Path]) -> tuple[str, Evolution]:
    """The unit of time, and each coefficient over time, from one log or any number of checkpoints.

    Raises:
        ValueError: if there are no coefficients, and as :func:`from_log` and :func:`from_checkpoints` do.
    """
    is_log = len(paths) == 1 and paths[0].suffix in (".csv", ".log")
    unit, lines = from_log(paths[0]) if is_log else from_checkpoints(paths)
    if not lines:
        raise ValueError(f"{paths[0]}: has no residual coefficients (models have them with lrc=True or as recursive_*)")
    return unit, lines


def of_first_block(lines: Evolution) -> Evolution:
    """The coefficients of the first stored block of the first stack, and of the projection after its first pass."""
    first = min(coefficient.stack for coefficient in lines)
    return {
        coefficient: line for coefficient, line in lines.items() if (coefficient.stack, coefficient.index) == (first, 0)
    }


def dashes(role: str) -> str:
    """The line style of a coefficient: solid for the identity, dashed for the branch."""
    return "-" if role == "identity" else "--"


def draw_in_one_panel(unit: str, lines: Evolution, path: Path) -> None:
    """Draws the coefficients of one block, one colour per sublayer."""
    figure = page(2.8)
    axes = figure.subplots()
    for coefficient, line in lines.items():
        style = dict(color=COLOURS[ORDER.index(coefficient.sublayer)], linestyle=dashes(coefficient.role))
        marker = "." if len(line) <= FEW else None
        label = f"{coefficient.sublayer}, {coefficient.role}"
        axes.plot(*zip(*sorted(line.items())), label=label, marker=marker, **style)
    axes.set(xlabel=unit, ylabel="coefficient")
    axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside right upper")
    save_numbers(figure, path, unit, lines)


def shade(coefficient: Coefficient, lines: Evolution) -> float:
    """The place of a coefficient's block on the colour map, among those of the same panel."""
    blocks = sorted({other.index for other in lines if other[:2] == coefficient[:2]})
    return 0.35 + 0.38 * blocks.index(coefficient.index) / max(len(blocks) - 1, 1)


def draw(unit: str, lines: Evolution, path: Path) -> None:
    """Draws a grid of panels, kinds of sublayers by stacks."""
    kinds = [kind for kind in ORDER if any(coefficient.sublayer == kind for coefficient in lines)]
    stacks = {coefficient.stack for coefficient in lines}
    stacks = sorted(stacks, reverse=any("encoder" in stack for stack in stacks))
    figure = page(0.6 + 1.5 * len(kinds))
    panels = figure.subplots(len(kinds), len(stacks), sharex=True, sharey=True, squeeze=False)
    for coefficient, line in lines.items():
        axes = panels[kinds.index(coefficient.sublayer), stacks.index(coefficient.stack)]
        colour = matplotlib.colormaps["viridis"](shade(coefficient, lines))
        style = dict(linestyle=dashes(coefficient.role), linewidth=1, markersize=3)
        axes.plot(*zip(*sorted(line.items())), color=colour, marker="." if len(line) <= FEW else None, **style)
    for axes in (axes for axes in panels.flat if not axes.has_data()):
        axes.grid(False)
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", va="center")
    for axes, kind in zip(panels[:, 0], kinds):
        axes.set_ylabel(f"coefficient,\n{kind}")
    for axes, stack in zip(panels[0], stacks):
        axes.set_title(re.sub(r"stages\.(\d+)", lambda match: f"stage {1 + int(match[1])}", stack))
    for axes in panels[-1]:
        axes.set_xlabel(unit)
        axes.xaxis.get_major_locator().set_params(integer=True)
    keys = [Line2D([], [], color="black", linestyle=style) for style in ("-", "--")]
    figure.legend(keys, ["identity", "branch"], loc="outside lower center", ncols=2)
    save_numbers(figure, path, unit, lines)


def save_numbers(figure: Figure, path: Path, unit: str, lines: Evolution) -> None:
    """Saves the picture, and a CSV row per coefficient and time."""
    rows = [
        (*coefficient[:2], coefficient.index + 1, coefficient.role, time, value)
        for coefficient, line in lines.items()
        for time, value in line.items()
    ]
    save(figure, path, ["stack", "sublayer", "block or pass", "role", unit, "coefficient"], rows)


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__)
    command_line.add_argument("paths", type=Path, nargs="+", metavar="LOG|CHECKPOINT", help="one log, or checkpoints")
    command_line.add_argument("--first-block", action="store_true", help="only the first block, in one panel")
    options = command_line.parse_args(arguments)
    try:
        unit, lines = evolution(options.paths)
    except (OSError, RuntimeError, ValueError) as error:
        command_line.error(str(error))
    if options.first_block:
        draw_in_one_panel(unit, of_first_block(lines), options.output)
    else:
        draw(unit, lines, options.output)


if __name__ == "__main__":
    main()
