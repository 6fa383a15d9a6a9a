"""Plot validation losses against updates, as the paper's figure does, from the logs of the runs of one scale.

    python curves.py OUT/shakespeare/train/SCALE curves.svg

Every run under the folder is a line, named by its row; several seeds of a row share a colour.
"""

import json
import math
import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

NANOGPT = 1.4697


def validation_losses(log: str) -> dict[int, float]:
    """Updates -> nats a character, from the host's JSON lines, which have the loss to base 2."""
    found = (json.loads(line) for line in re.findall(r"\| valid \| (\{.*\})", log))
    return {int(point["valid_num_updates"]): float(point["valid_loss"]) * math.log(2) for point in found}


def plot(folder: Path, target: Path) -> None:
    """Writes the picture."""
    figure, axes = plt.subplots(figsize=(6, 4))
    for number, row in enumerate(sorted(path for path in folder.iterdir() if path.is_dir())):
        label = row.name
        for log in sorted(row.glob("s*/train.log")):
            points = sorted(validation_losses(log.read_text(encoding="utf-8")).items())
            if points:  # a run that has just begun has none
                axes.plot(*zip(*points), color=f"C{number}", label=label, marker="." if len(points) < 20 else None)
                label = None
    axes.axhline(NANOGPT, color="grey", linestyle=":", label=f"nanoGPT, full budget: {NANOGPT}")
    axes.set(
        xlabel="updates", ylabel="validation loss, nats a character", title=f"tiny Shakespeare, scale {folder.name}"
    )
    axes.legend()
    figure.tight_layout()
    # No date and fixed names, so that the same logs give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "curves"
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    plot(*map(Path, sys.argv[1:]))
