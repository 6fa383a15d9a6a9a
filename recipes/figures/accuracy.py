"""Plot accuracy over parameters and over operations for the models of SReT's Table 5 (SReT, Figure 1).

    python recipes/figures/accuracy.py --output accuracy.svg

Shows the printed results at 224 pixels; a cross marks our run of a row at scale paper. The numbers are saved next to
the picture, as CSV.
"""

import math
import sys
from pathlib import Path

import pandas as pd
from pictures import COLOURS, MARKERS, page, parser, save

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "records"))

import render
import rows

KINDS = ("SReT", "SReT, distilled", "others", "others, distilled")
AXES = {"#Params (M)": "parameters, millions", "FLOPs (B)": "multiply-accumulates, billions"}
TOP1, PRINTED, OURS = "Top-1 (%)", "top-1 %, as printed", "top-1 %, ours"


def points(table: rows.Table) -> pd.DataFrame:
    """The rows at 224 pixels: their kind, the costs in the order of `AXES`, and the accuracies; NaN without a run."""
    lines = render.shown(table)
    lines = lines[(lines["scale"] == "paper") & (lines["metric"] == render.METRICS["top1"])]
    ours, found = pd.to_numeric(lines["value"]).groupby(lines["row"]).mean(), []
    for name, row in table.rows.items():
        if row.paper.get("Resolution") == "224":
            kind = KINDS[2 * ("(Ours)" not in row.label) + ("Distill" in row.label)]
            printed = [float(row.paper[title]) for title in (*AXES, TOP1)]
            found.append((name, kind, *printed, ours.get(name, math.nan)))
    return pd.DataFrame(found, columns=["row", "kind", *AXES, PRINTED, OURS])


def draw(rows_at_224: pd.DataFrame, path: Path) -> None:
    """Draws one panel per cost."""
    figure = page(3.2)
    panels = figure.subplots(1, len(AXES), sharey=True)
    for axes, (cost, name) in zip(panels, AXES.items()):
        for kind, colour, marker in zip(KINDS, COLOURS, MARKERS):
            found = rows_at_224[rows_at_224["kind"] == kind]
            axes.scatter(found[cost], found[PRINTED], s=14, color=colour, marker=marker, label=kind)
            axes.scatter(found[cost], found[OURS], s=24, color=colour, marker="x")
        axes.set(xscale="log", xlabel=name)
    panels[0].set_ylabel(PRINTED)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(KINDS))
    save(figure, path, list(rows_at_224), rows_at_224.itertuples(index=False))


def main(arguments: list[str] | None = None) -> None:
    options = parser(__doc__).parse_args(arguments)
    draw(points(rows.read(rows.RECIPES / "sret").tables["table5"]), options.output)


if __name__ == "__main__":
    main()
