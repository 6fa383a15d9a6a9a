"""Print a table of the demo's results, one line per model.

python report.py RUN_FOLDER...
"""

import argparse
import json
import sys
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "records"))

from collect import training


def line(run: Path) -> dict[str, str]:
    """A run's line of the table."""
    results = json.loads((run / "scores.json").read_text()) | training(run)
    return {
        "model": run.parent.name,
        "stored parameters": f"{results['params']:,}",
        "held-out digits": f"{results['top1']:.2f} %",
        "MMAC": f"{results['mmac']:.1f}",
        "seconds of training": f"{results['wall_s']}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    runs = parser.parse_args().runs
    try:
        table = pd.DataFrame(map(line, runs)).set_index("model")
    except OSError as error:
        parser.error(str(error))
    print(f"\n{table.to_string()}")
    print("\nCheckpoints and logs:", *runs, sep="\n  ")


if __name__ == "__main__":
    main()
