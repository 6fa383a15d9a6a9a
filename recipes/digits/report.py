"""Tell how the demo went: a line for each model.

python report.py RUN_FOLDER...
"""

import argparse
import json
from pathlib import Path

HEAD = ("model", "stored parameters", "held-out digits", "MMAC", "seconds of training")


def line(run: Path) -> tuple[str, ...]:
    """What metrics.json of a run says."""
    found = json.loads((run / "metrics.json").read_text())
    numbers = f"{found['params']:,}", f"{found['top1']:.2f} %", f"{found['mmac']:.1f}", str(found["wall_s"])
    return found["arch"], *numbers


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
    print("\nCheckpoints, logs and the commands (cmd.sh) lie in", *runs, sep="\n  ")


if __name__ == "__main__":
    main()
