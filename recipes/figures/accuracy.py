"""Draw accuracy over parameters and over operations (SReT, Figure 1), of the models of the paper's Table 5.

    python recipes/figures/accuracy.py --output accuracy.svg

What the paper prints, at 224 pixels; a cross is our run of a row at scale paper. Beside OUTPUT lie the numbers, as CSV.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pictures import COLOURS, MARKERS, page, parser, save

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "records"))

import render  # noqa: E402
import rows  # noqa: E402

KINDS = ("SReT", "SReT, distilled", "others", "others, distilled")
AXES = {"#Params (M)": "parameters, millions", "FLOPs (B)": "multiply-accumulates, billions"}
TOP1 = "Top-1 (%)"


class Point(NamedTuple):
    """A row: its kind, what it costs by column, its accuracy as printed, and ours (None without a run)."""

    row: str
    kind: str
    costs: tuple[float, ...]
    paper: float
    ours: float | None


def points(table: rows.Table) -> Iterator[Point]:
    """Every printed row of 224 pixels."""
    results = render.Results()
    accuracy = next(column for column in table.columns if column.title == TOP1)
    for row in table.rows.values():
        if row.paper.get("Resolution") != "224":
            continue
        kind = KINDS[2 * ("(Ours)" not in row.label) + ("Distill" in row.label)]
        cell = render.Cell(render.run_of(row, accuracy), "top1", results) if row.arch else None
        ours = sum(cell.values) / len(cell.values) if cell and cell.scale == "paper" and cell.values else None
        yield Point(row.name, kind, tuple(float(row.paper[axis]) for axis in AXES), float(row.paper[TOP1]), ours)


def draw(found: list[Point], path: Path) -> None:
    """A panel for each cost."""
    figure = page(3.2)
    panels = figure.subplots(1, len(AXES), sharey=True)
    for number, (axes, name) in enumerate(zip(panels, AXES.values())):
        for kind, colour, marker in zip(KINDS, COLOURS, MARKERS):
            same = [point for point in found if point.kind == kind]
            costs = [point.costs[number] for point in same]
            axes.scatter(costs, [point.paper for point in same], s=14, color=colour, marker=marker, label=kind)
            run = [(point.costs[number], point.ours) for point in same if point.ours is not None]
            axes.scatter(*(zip(*run) if run else ((), ())), s=24, color=colour, marker="x")
        axes.set(xscale="log", xlabel=name)
    panels[0].set_ylabel("top-1 %, as printed")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(KINDS))
    lines = [
        (point.row, point.kind, *point.costs, point.paper, "" if point.ours is None else point.ours) for point in found
    ]
    save(figure, path, ["row", "kind", *AXES, "top-1 %, as printed", "top-1 %, ours"], lines)


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__)
    options = command_line.parse_args(arguments)
    draw(list(points(rows.read(rows.RECIPES / "sret").tables["table5"])), options.output)


if __name__ == "__main__":
    main()
