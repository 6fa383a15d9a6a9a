"""Tell how the demo went: a line for each model.

python report.py RUN_FOLDER...
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "records"))

from collect import training  # noqa: E402

HEAD = ("model", "stored parameters", "held-out digits", "MMAC", "seconds of training")


def line(run: Path) -> tuple[str, ...]:
    """What a run's log and scores say."""
    found = json.loads((run / "scores.json").read_text()) | training(run)
    numbers = f"{found['params']:,}", f"{found['top1']:.2f} %", f"{found['mmac']:.1f}", str(found["wall_s"])
    return run.parent.name, *numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    runs = parser.parse_args().runs
    lines = [HEAD, *map(line, runs)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print()
    for first, *rest in lines:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        print("   ".join([first.ljust(widths[0]), *cells]))
    print("\nCheckpoints and logs lie in", *runs, sep="\n  ")


if __name__ == "__main__":
    main()
