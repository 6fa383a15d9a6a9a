"""Plot the wrong words of the pronunciation table over the stored bytes.

    python recipes/figures/sizes.py --output sizes.svg

A marker is the mean over the seeds, its bar reaches from the best seed to the worst. Lines connect the sizes of one
kind. All are trained for 6,000 updates. Bytes are those of float32, or of the files in eight bits. The numbers are
saved next to the picture, as CSV.
"""

import sys
from pathlib import Path

import pandas as pd
from pictures import COLOURS, MARKERS, page, parser, save

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "records"))

import render
import rows

KINDS = {
    "RingFormer, 4 + 4 passes": ["width_88", "ringformer_small", "width_176"],
    "a layer for each pass": ["narrow_48", "narrow", "narrow_96", "deep"],
    "two layers on each side": ["half"],
    "two layers on each side, run twice": ["cycle"],
    "three blocks, the middle one in a loop": ["middle_twice", "middle"],
    "one layer on each side": ["once", "storage"],
    "RingFormer, 4 + 4 passes, in eight bits": ["eight_bits"],
    "a layer for each pass, in eight bits": ["narrow_eight_bits", "deep_eight_bits"],
}
EIGHT_BITS = ", in eight bits"
BYTES, MEAN, LOW, HIGH = "stored MB", "wrong words, %", "best seed", "worst seed"


def points(table: rows.Table) -> pd.DataFrame:
    """The mean and range of each row that has been trained, with its kind and size."""
    lines = render.shown(table)
    lines = lines[lines["scale"] == "small"]
    lines = lines.assign(value=pd.to_numeric(lines["value"]), size=pd.to_numeric(lines["params"]) * 4 / 1e6)
    files = lines[lines["metric"] == render.METRICS["megabytes"]].groupby("row")["value"].mean()
    lines = lines[lines["metric"] == render.METRICS["word_error_rate"]]
    found = []
    for kind, names in KINDS.items():
        for name in names:
            row = lines[lines["row"] == name]
            if len(row):
                value, size = row["value"], files.get(name, row["size"].mean())
                found.append((name, kind, size, value.mean(), value.min(), value.max(), value.count()))
    return pd.DataFrame(found, columns=["row", "kind", BYTES, MEAN, LOW, HIGH, "seeds"])


def draw(trained: pd.DataFrame, path: Path) -> None:
    """Draws one line per kind; markers of models in eight bits are hollow."""
    figure, in_float32 = page(3.6), [kind for kind in KINDS if not kind.endswith(EIGHT_BITS)]
    axes = figure.subplots()
    for kind in KINDS:
        of_kind = trained[trained["kind"] == kind].sort_values(BYTES)
        if of_kind.empty:
            continue
        bars = [of_kind[MEAN] - of_kind[LOW], of_kind[HIGH] - of_kind[MEAN]]
        place = in_float32.index(kind.removesuffix(EIGHT_BITS))
        style = dict(color=COLOURS[place], marker=MARKERS[place], capsize=3, ms=4, label=kind)
        hollow = dict(mfc="none", linestyle="--") if kind.endswith(EIGHT_BITS) else {}
        axes.errorbar(of_kind[BYTES], of_kind[MEAN], bars, **style, **hollow)
    axes.set(xlim=(0, 1.1 * trained[BYTES].max()), xlabel=BYTES, ylabel=MEAN)
    figure.legend(loc="outside lower center", ncols=2)
    save(figure, path, list(trained), trained.itertuples(index=False))


def main(arguments: list[str] | None = None) -> None:
    options = parser(__doc__).parse_args(arguments)
    draw(points(rows.read(rows.RECIPES / "pronounce").tables["train"]), options.output)


if __name__ == "__main__":
    main()
