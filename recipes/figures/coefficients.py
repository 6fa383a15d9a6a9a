"""Plot the residual coefficients of the first block over the course of training (SReT, Figure 6).

    python recipes/figures/coefficients.py RUN/summary.csv --output coefficients.svg       (of train_image.py)
    python recipes/figures/coefficients.py RUN/train.log --output coefficients.svg         (fairseq, --log-format json)

Draws the six coefficients of the first stored block and of the projection after its first pass, one colour per
sublayer. Solid lines are the coefficients of the residual stream (identity), dashed lines those of the branch. The
numbers are saved next to the picture, as CSV.
"""

from collections import defaultdict
from pathlib import Path

from coefficient_names import Coefficient, coefficients
from pictures import COLOURS, FEW, page, parser, save

from recurrence.analysis.logs import points

Evolution = dict[Coefficient, dict[float, float]]
ORDER = ("attention", "token mixing", "cross-attention", "FFN", "projection")
LINES = {"identity": "-", "branch": "--"}


def evolution(log: Path) -> tuple[str, Evolution]:
    """The unit of time of a log, and each coefficient of the first block over time.

    Raises:
        ValueError: if there are no coefficients.
    """
    lines: Evolution = defaultdict(dict)
    unit, name = ("epochs", "epoch") if log.suffix == ".csv" else ("updates", "updates")
    for point in points(log, "train_inner"):
        for coefficient, value in coefficients(point).items():
            lines[coefficient][point[name]] = value
    if not lines:
        raise ValueError(f"{log}: has no residual coefficients (models have them with lrc=True or as recursive_*)")
    first = min(coefficient.stack for coefficient in lines)
    return unit, {one: line for one, line in lines.items() if (one.stack, one.index) == (first, 0)}


def draw(unit: str, lines: Evolution, path: Path) -> None:
    """Draws a line for each coefficient, and saves a CSV row per coefficient and time."""
    figure = page(2.8)
    axes = figure.subplots()
    for coefficient, line in lines.items():
        style = dict(color=COLOURS[ORDER.index(coefficient.sublayer)], linestyle=LINES[coefficient.role])
        marker = "." if len(line) <= FEW else None
        label = f"{coefficient.sublayer}, {coefficient.role}"
        axes.plot(*zip(*sorted(line.items())), label=label, marker=marker, **style)
    axes.set(xlabel=unit, ylabel="coefficient")
    axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside right upper")
    rows = [(one.stack, one.sublayer, one.role, *point) for one, line in lines.items() for point in line.items()]
    save(figure, path, ["stack", "sublayer", "role", unit, "coefficient"], rows)


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__)
    command_line.add_argument("log", type=Path)
    options = command_line.parse_args(arguments)
    try:
        unit, lines = evolution(options.log)
    except (OSError, ValueError) as error:
        command_line.error(str(error))
    draw(unit, lines, options.output)


if __name__ == "__main__":
    main()
