"""How the pictures of the analyses are drawn: one width, one style, the numbers beside each as CSV of the same name.

Colours are told apart by colour-blind readers too (Okabe and Ito's for lines, cividis for surfaces), text has 8 points
or more at the width of a page, and the same numbers give the same file.
"""

import argparse
import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
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
        "svg.hashsalt": "recurrence",  # names within the file, which are random otherwise
    }
)

WIDTH = 6.5  # inches, the text of a page
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
FEW = 30  # points of a line up to which each is marked
DARK = """@media (prefers-color-scheme: dark) {
 svg { fill: #e4e6ea }
 [style*="fill: #ffffff"] { fill: #15171a !important }
 [style*="fill: #000000"] { fill: #e4e6ea !important }
 [style*="stroke: #000000"] { stroke: #e4e6ea !important }
}"""
BLACK, WHITE = "#010101", "#fefefe"  # stay so on dark pages: for what lies on a coloured surface
NO_DATE = {".svg": {"Date": None}, ".png": {"Software": None}}


def picture(text: str) -> Path:
    """An argument that names the file of a picture.

    Raises:
        argparse.ArgumentTypeError: if it is neither SVG nor PNG.
    """
    path = Path(text)
    if path.suffix not in NO_DATE:
        raise argparse.ArgumentTypeError(f"{text!r}: must end in .svg or .png")
    return path


def page(height: float, width: float = WIDTH) -> Figure:
    """A figure, its sides in inches, as wide as a page where nothing else is said."""
    return Figure(figsize=(width, height), layout="constrained")


def for_both(svg: str) -> str:
    """An SVG that is light on light pages and dark on dark ones: what is white or black changes places."""
    return svg.replace("<defs>", f"<style>{DARK}</style>\n <defs>", 1)


def save_picture(figure: Figure, path: Path) -> None:
    """Writes the picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata=NO_DATE[path.suffix])
    if path.suffix == ".svg":
        path.write_text(for_both(path.read_text(encoding="utf-8")), encoding="utf-8")


def save(figure: Figure, path: Path, columns: Sequence[str], rows: Iterable[Sequence]) -> None:
    """Writes the picture, and what it shows as CSV, six digits of each number."""
    save_picture(figure, path)
    with path.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows)


def parser(description: str) -> argparse.ArgumentParser:
    """A command line that draws a picture; its help begins with the head of its file."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--output", type=picture, required=True, help=".svg or .png")
    return made


def labelled(text: str) -> tuple[str, Path]:
    """LABEL=PATH, or a path whose run's folder is the label."""
    label, equals, path = text.partition("=")
    return (label, Path(path)) if equals else (Path(text).resolve().parent.name, Path(text))
