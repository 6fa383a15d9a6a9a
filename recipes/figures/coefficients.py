"""Plot the residual coefficients of the first block of an SReT over the course of training (SReT, Figure 6).

    python recipes/figures/coefficients.py RUN/summary.csv --output coefficients.svg       (of train_image.py)

Draws those of attention, FFN and the projection after the block's first pass, one colour per sublayer: solid lines for
the residual stream (identity), dashed lines for the branch. The numbers are saved next to the picture, as CSV. The
equations and the text of the paper disagree about the coefficients' letters; here each is named after its role.
"""

import re
from pathlib import Path

from logs import points
from pictures import COLOURS, FEW, page, parser, save, whole_numbers

SUBLAYERS = {
    "blocks.0.residuals.0": "attention",
    "blocks.0.residuals.1": "FFN",
    "own.0.projection.residual": "projection",
}
COEFFICIENT = re.compile(r"stages\.0\.(?:loop\.)?(blocks\.0\.residuals\.[01]|own\.0\.projection\.residual)\.(\w+)$")
LINES = {"identity": "-", "branch": "--"}
Evolution = dict[tuple[str, str], dict[int, float]]


def evolution(log: Path) -> Evolution:
    """Each coefficient over the epochs, by sublayer and role.

    Raises:
        ValueError: if there are none.
    """
    lines: Evolution = {}
    table = points(log, "train").set_index("epoch")
    for name, values in table.items():
        if found := COEFFICIENT.search(name):
            lines[SUBLAYERS[found[1]], found[2]] = {int(epoch): value for epoch, value in values.dropna().items()}
    if not lines:
        raise ValueError(f"{log}: has no residual coefficients of an SReT (lrc=True)")
    return lines


def draw(lines: Evolution, path: Path) -> None:
    """Draws a line for each coefficient."""
    figure = page(2.8)
    axes = figure.subplots()
    for (sublayer, role), line in lines.items():
        colour, marker = COLOURS[[*SUBLAYERS.values()].index(sublayer)], "." if len(line) <= FEW else None
        style = dict(color=colour, marker=marker, linestyle=LINES[role])
        axes.plot(line.keys(), line.values(), label=f"{sublayer}, {role}", **style)
    axes.set(xlabel="epochs", ylabel="coefficient")
    whole_numbers(axes.xaxis)
    figure.legend(loc="outside right upper")
    rows = [(*which, *point) for which, line in lines.items() for point in line.items()]
    save(figure, path, ["sublayer", "role", "epochs", "coefficient"], rows)


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__)
    command_line.add_argument("log", type=Path)
    options = command_line.parse_args(arguments)
    try:
        lines = evolution(options.log)
    except (OSError, ValueError) as error:
        command_line.error(str(error))
    draw(lines, options.output)


if __name__ == "__main__":
    main()
