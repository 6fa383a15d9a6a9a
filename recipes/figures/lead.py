"""Plot by how much the loss of some runs is below that of others, over the course of both trainings.

    python recipes/figures/lead.py loop=RUN/train.log narrow=OTHER/train.log --output lead.svg

The runs of the first label are compared with those of every other one, in pairs: the first with the first, and so on.
Where trainings differ in length, both have done the same share of their updates, so that their schedules have come
equally far. A line is the mean of the pairs, its band reaches from the least to the most. A run is the log of a
finished fairseq-train with --log-format json: its last validation counts as its end. The numbers are saved next to the
picture, as CSV.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from logs import curve
from pictures import COLOURS, labelled, page, parser, save

FIRST = 15  # percent of the updates; before, losses of different runs are too far apart for one axis
SHARE, MEAN, LEAST, MOST = "share of the updates, %", "lead in validation loss, bits", "least", "most"
Losses = tuple[np.ndarray, np.ndarray]


def losses(log: Path) -> Losses:
    """The shares of the updates, in percent, and the losses after them."""
    updates, values = np.array(curve(log, "updates", "valid_nll_loss")).T
    return 100 * updates / updates[-1], values


def leads(runs: Sequence[tuple[str, Path]]) -> pd.DataFrame:
    """The mean, least and largest lead of the first label's runs over every other label's.

    Raises:
        ValueError: if there is one label only, or another has more runs than the first.
    """
    by_label: dict[str, list[Losses]] = {}
    for label, log in runs:
        by_label.setdefault(label, []).append(losses(log))
    (first, ours), *others = by_label.items()
    if not others:
        raise ValueError(f"{first}: must be followed by runs of another label")
    found = []
    for label, theirs in others:
        if len(theirs) > len(ours):
            raise ValueError(f"{label}: has {len(theirs)} runs, {first} {len(ours)}; must have as many or fewer")
        shares = ours[0][0][ours[0][0] >= FIRST]
        pairs = [np.interp(shares, *other) - np.interp(shares, *own) for own, other in zip(ours, theirs)]
        lines = zip(shares, np.mean(pairs, 0), np.min(pairs, 0), np.max(pairs, 0))
        found += [(label, *line, len(pairs)) for line in lines]
    return pd.DataFrame(found, columns=["over", SHARE, MEAN, LEAST, MOST, "pairs"])


def draw(found: pd.DataFrame, path: Path) -> None:
    """Draws a line and a band for each label."""
    figure = page(3.2)
    axes = figure.subplots()
    for (label, lines), colour in zip(found.groupby("over", sort=False), itertools.cycle(COLOURS)):
        axes.plot(lines[SHARE], lines[MEAN], color=colour, label=f"over {label}")
        axes.fill_between(lines[SHARE], lines[LEAST], lines[MOST], color=colour, alpha=0.2, linewidth=0)
    axes.axhline(0, color="grey", linewidth=1)
    axes.set(xlabel=SHARE, ylabel=MEAN)
    figure.legend(loc="outside lower center", ncols=2)
    save(figure, path, list(found), found.itertuples(index=False))


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__)
    command_line.add_argument("runs", type=labelled, nargs="+", metavar="LABEL=LOG")
    options = command_line.parse_args(arguments)
    try:
        draw(leads(options.runs), options.output)
    except (OSError, ValueError) as error:
        command_line.error(str(error))


if __name__ == "__main__":
    main()
