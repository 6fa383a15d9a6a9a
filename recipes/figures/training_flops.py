"""Floating-point operations of training a language model in several rows (Intra-Layer Recurrence, Table 2).

    python recipes/figures/training_flops.py --symbols 1024 --text 1024 --texts 64 --updates 7629 \\
        --vary reuse-map 1,1,1,1 2,1,1,1 4,2,1,1 --output flops.svg -- --arch ilr_small

Counted are two for each multiply-accumulate of all matrix products, full attention included, forward and backward, as
flops.py counts them; elementwise work is left out. Beside OUTPUT lie the numbers, as CSV.
"""

import argparse

from flops import per_text
from pictures import COLOURS, page, parser, picture, save


def rows(options: argparse.Namespace) -> list[tuple[str, float, float]]:
    """Of each row its value, its forward operations a symbol, and its training."""
    name, *values = options.vary
    flags = [flag for flag in options.flags if flag != "--"]
    found = []
    for value in values:
        counted = per_text(options.symbols, options.text, [*flags, f"--{name}", value])
        training = counted["both"] * options.texts * options.updates
        found.append((value, float(counted["forward"] / options.text), float(training)))
    return found


def draw(found: list[tuple[str, float, float]], name: str, path) -> None:
    """A bar for each row."""
    figure = page(0.8 + 0.25 * len(found))
    axes = figure.subplots()
    bars = axes.barh([value for value, _, _ in found], [training for *_, training in found], color=COLOURS[0])
    axes.bar_label(bars, fmt="{:.3g}", padding=2)
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()
    axes.set(xlabel="floating-point operations of the training", ylabel=name)
    save(figure, path, [name, "forward operations a symbol", "operations of the training"], found)


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__)
    command_line.add_argument("--symbols", type=int, required=True, help="size of the dictionary")
    command_line.add_argument("--text", type=int, required=True, help="length of a text")
    command_line.add_argument("--texts", type=int, required=True, help="texts an update")
    command_line.add_argument("--updates", type=int, required=True)
    command_line.add_argument("--vary", nargs="+", required=True, metavar=("OPTION", "VALUE"), help="one row a value")
    command_line.add_argument("--output", type=picture, required=True, help=".svg or .png")
    command_line.add_argument("flags", nargs=argparse.REMAINDER, help="-- and the model's flags")
    options = command_line.parse_args(arguments)
    if len(options.vary) < 2:
        command_line.error(f"--vary {options.vary[0]}: needs a value for each row")
    try:
        found = rows(options)
    except ValueError as error:
        command_line.error(str(error))
    draw(found, options.vary[0], options.output)


if __name__ == "__main__":
    main()
