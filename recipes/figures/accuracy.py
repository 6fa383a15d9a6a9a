"""Plot accuracy over parameters and over operations for the models of SReT's Table 5 (SReT, Figure 1).

    python recipes/figures/accuracy.py --output accuracy.svg

Shows the printed results at 224 pixels; a cross marks our run of a row at scale paper. The numbers are saved next to
the picture, as CSV.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from pictures import COLOURS, MARKERS, page, parser, save

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "records"))

import render  # noqa: E402
import rows  # noqa: E402

KINDS = ("SReT", "SReT, distilled", "others", "others, distilled")
AXES = {"#Params (M)": "parameters, millions", "FLOPs (B)": "multiply-accumulates, billions"}
TOP1 = "Top-1 (%)"


class Point(NamedTuple):
    """A row of the table: its costs in the order of `AXES`, the printed accuracy, and ours (None without a run)."""

    row: str
    kind: str
    costs: tuple[float, ...]
    paper: float
    ours: float | None


def points(table: rows.Table) -> Iterator[Point]:
    """The rows at 224 pixels."""
    lines = render.shown(table)
    lines = lines[(lines["scale"] == "paper") & (lines["metric"] == render.METRICS["top1"])]
    found = pd.to_numeric(lines["value"]).groupby(lines["row"]).mean()
    for name, row in table.rows.items():
        if row.paper.get("Resolution") == "224":
            kind = KINDS[2 * ("(Ours)" not in row.label) + ("Distill" in row.label)]
            costs = tuple(float(row.paper[axis]) for axis in AXES)
            yield Point(name, kind, costs, float(row.paper[TOP1]), found.get(name))


def draw(rows_at_224: list[Point], path: Path) -> None:
    """Draws one panel per cost."""
    figure = page(3.2)
    panels = figure.subplots(1, len(AXES), sharey=True)
    for number, (axes, name) in enumerate(zip(panels, AXES.values())):
        for kind, colour, marker in zip(KINDS, COLOURS, MARKERS):
            of_kind = [point for point in rows_at_224 if point.kind == kind]
            costs = [point.costs[number] for point in of_kind]
            axes.scatter(costs, [point.paper for point in of_kind], s=14, color=colour, marker=marker, label=kind)
            ours = [(point.costs[number], point.ours) for point in of_kind if point.ours is not None]
            axes.scatter(*(zip(*ours) if ours else ((), ())), s=24, color=colour, marker="x")
        axes.set(xscale="log", xlabel=name)
    panels[0].set_ylabel("top-1 %, as printed")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(KINDS))
    lines = [(point.row, point.kind, *point.costs, point.paper, point.ours) for point in rows_at_224]
    save(figure, path, ["row", "kind", *AXES, "top-1 %, as printed", "top-1 %, ours"], lines)


def main(arguments: list[str] | None = None) -> None:
    options = parser(__doc__).parse_args(arguments)
    draw(list(points(rows.read(rows.RECIPES / "sret").tables["table5"])), options.output)


if __name__ == "__main__":
    main()
