"""Plot losses against updates from the host's logs of the runs of one scale, as JSON lines.

    python curves.py OUT/PAPER/TABLE/SCALE curves.svg --title "tiny Shakespeare" --unit "nats a character" \\
        [--stage valid|train_inner] [--number loss|nll_loss] [--line "nanoGPT, full budget" 1.4697]

Every run under the folder is a line, named by its row; several seeds of a row share a colour.
"""

import argparse
import json
import math
import re
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

STAGES = {"valid": "validation loss", "train_inner": "training loss"}


def losses(log: str, stage: str = "valid", number: str = "loss") -> dict[int, float]:
    """Updates -> nats, of a log that has them to base 2.

    Args:
        log: text of the log.
        stage: "valid", or "train_inner" for means over the updates since the line before.
        number: "loss", or "nll_loss" for what a smoothed loss is without its smoothing.
    """
    prefix = "valid_" if stage == "valid" else ""
    found = (json.loads(line) for line in re.findall(rf"\| {stage} \| (\{{.*\}})", log))
    return {int(point[f"{prefix}num_updates"]): float(point[prefix + number]) * math.log(2) for point in found}


def plot(folder: Path, target: Path, options: argparse.Namespace) -> None:
    """Writes the picture."""
    figure, axes = plt.subplots(figsize=(6, 4))
    for number, row in enumerate(sorted(path for path in folder.iterdir() if path.is_dir())):
        label = row.name
        for log in sorted(row.glob("s*/train.log")):
            points = sorted(losses(log.read_text(encoding="utf-8"), options.stage, options.number).items())
            if points:  # a run that has just begun has none
                axes.plot(*zip(*points), color=f"C{number}", label=label, marker="." if len(points) < 20 else None)
                label = None
    if options.line:
        name, value = options.line
        axes.axhline(float(value), color="grey", linestyle=":", label=f"{name}: {value}")
    axes.set(
        xlabel="updates",
        ylabel=f"{STAGES[options.stage]}, {options.unit}",
        title=f"{options.title}, scale {folder.name}",
    )
    axes.legend()
    figure.tight_layout()
    # No date and fixed names, so that the same logs give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "curves"
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--title", required=True)
    parser.add_argument("--unit", required=True, help="nats a what")
    parser.add_argument("--stage", choices=STAGES, default="valid")
    parser.add_argument("--number", choices=("loss", "nll_loss"), default="loss")
    parser.add_argument("--line", nargs=2, metavar=("NAME", "LOSS"), help="a loss to compare with")
    options = parser.parse_args()
    plot(options.folder, options.target, options)


if __name__ == "__main__":
    main()
