"""Print a table of the demo's results, one line per model.

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
    """A run's line of the table."""
    results = json.loads((run / "scores.json").read_text()) | training(run)
    return (
        run.parent.name,
        f"{results['params']:,}",
        f"{results['top1']:.2f} %",
        f"{results['mmac']:.1f}",
        str(results["wall_s"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    runs = parser.parse_args().runs
    try:
        lines = [HEAD, *map(line, runs)]
    except OSError as error:
        parser.error(str(error))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print()
    for first, *rest in lines:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        print("   ".join([first.ljust(widths[0]), *cells]))
    print("\nCheckpoints and logs:", *runs, sep="\n  ")


if __name__ == "__main__":
    main()
