"""Print the loss at the last validation of a training, in nats per symbol and without label smoothing, as JSON.

    python loss.py train.log > scores.json

The log has fairseq's JSON format, with losses to base 2.
"""

import argparse
import json
import math
from pathlib import Path

from recipes.figures.logs import curve


def last_validation(log: Path) -> dict:
    """Nats per symbol at the last validation of a training, and the number of updates by then.

    Raises:
        ValueError: if the log has no validation.
    """
    *_, (updates, base2) = curve(log, "updates", "valid_nll_loss")
    return {"loss": round(base2 * math.log(2), 4), "updates": int(updates)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    args = parser.parse_args()
    try:
        print(json.dumps(last_validation(args.log), indent=2))
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
