"""Common style of all figures, saving them with their numbers as CSV, and the options that the figure scripts share.

Colours suit colour-blind readers (Okabe and Ito's palette for lines, cividis for surfaces), text has at least 8 points
at the width of a page, and the same numbers always give the same file.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axis import Axis
from matplotlib.figure import Figure

matplotlib.rcParams.update(
    {
        "font.size": 8,
        "axes.titlesize": 9,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.alpha": 0.3,
        "legend.frameon": False,
        "image.cmap": "cividis",
        "savefig.dpi": 200,
        "svg.hashsalt": "recurrence",  # otherwise the ids in the file are random
    }
)

WIDTH = 6.5  # inches, the text width of a page
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
FEW = 30  # a line of at most this many points gets a marker at each
DARK = """@media (prefers-color-scheme: dark) {
 svg { fill: #e4e6ea }
 [style*="fill: #ffffff"] { fill: #15171a !important }
 [style*="fill: #000000"] { fill: #e4e6ea !important }
 [style*="stroke: #000000"] { stroke: #e4e6ea !important }
}"""
BLACK, WHITE = "#010101", "#fefefe"  # not swapped on dark pages: for text on coloured surfaces
NO_DATE = {".svg": {"Date": None}, ".png": {"Software": None}}


def positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    """A type of options: a number > 0, parsed by `kind`, int or float."""

    def number(text: str) -> float:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text}: must be > 0 and finite")
        return value

    return number


def picture(text: str) -> Path:
    """Parses the path of a picture.

    Raises:
        argparse.ArgumentTypeError: if the file is neither SVG nor PNG, or cannot be in its folder.
    """
    path = Path(text)
    if path.suffix not in NO_DATE:
        raise argparse.ArgumentTypeError(f"{text!r}: must end in .svg or .png")
    existing = next(folder for folder in path.absolute().parents if folder.exists())
    if not existing.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: {existing} is not a folder")
    return path


def folder(text: str) -> str:
    """An option's value that must be the path of a folder."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: must be a folder")
    return text


def page(height: float, width: float = WIDTH) -> Figure:
    """A figure of the given size in inches, as wide as a page by default."""
    return Figure(figsize=(width, height), layout="constrained")


def whole_numbers(axis: Axis) -> None:
    """Labels an axis with whole numbers only, even where it shows just one; matplotlib would rather have two labels."""
    axis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def for_both(svg: str) -> str:
    """An SVG that follows the page's colour scheme: black and white are swapped on dark pages."""
    return svg.replace("<defs>", f"<style>{DARK}</style>\n <defs>", 1)


def save(figure: Figure, path: Path, columns: Sequence[str], rows: Iterable[Sequence]) -> None:
    """Writes the picture, and its numbers as CSV of the same name, with six significant digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata=NO_DATE[path.suffix])
    if path.suffix == ".svg":
        path.write_text(for_both(path.read_text(encoding="utf-8")), encoding="utf-8")
    table = pd.DataFrame(list(rows), columns=list(columns))
    table.to_csv(path.with_suffix(".csv"), index=False, float_format="%.6g")


def parser(description: str, of: str = "", **sizes: int) -> argparse.ArgumentParser:
    """The command line of a figure script: --output and, if it reads data, --data and how much of them.

    Args:
        description: text of the help.
        of: what the data are, images or sentences.
        sizes: the default of each option that counts them.
    """
    shown = argparse.RawDescriptionHelpFormatter
    command_line = argparse.ArgumentParser(description=description, formatter_class=shown)
    command_line.add_argument("--output", type=picture, required=True, help=".svg or .png")
    if of:
        command_line.add_argument("--data", type=folder, help=f"folder of the {of} (default: as in training)")
    for name, size in sizes.items():
        command_line.add_argument(f"--{name}", type=positive(int), default=size, help=f"{of} (default {size})")
    return command_line


def distinct(models: Sequence[tuple[str, Path]]) -> dict[str, Path]:
    """The paths by label.

    Raises:
        ValueError: if two have the same label.
    """
    found = dict(models)
    if len(found) < len(models):
        raise ValueError(f"labels {', '.join(label for label, _ in models)}: must differ; use LABEL=CHECKPOINT")
    return found


def labelled(text: str) -> tuple[str, Path]:
    """Parses LABEL=PATH, or a PATH whose folder's name is the label."""
    label, equals, path = text.partition("=")
    return (label, Path(path)) if equals else (Path(text).resolve().parent.name, Path(text))
