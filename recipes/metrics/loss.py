"""Print the loss at the last validation of a training, in nats per symbol and without label smoothing, as JSON.

    PYTHONPATH=. python recipes/metrics/loss.py train.log > scores.json

The log has fairseq's JSON format, with losses to base 2.
"""

import math
from pathlib import Path

from arguments import parser, print_scores

from recipes.figures.logs import curve


def last_validation(log: Path) -> dict:
    """Nats per symbol at the last validation of a training, and the number of updates by then.

    Raises:
        ValueError: if the log has no validation.
    """
    *_, (updates, base2) = curve(log, "updates", "valid_nll_loss")
    return {"loss": round(base2 * math.log(2), 4), "updates": int(updates)}


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("log", type=Path)
    print_scores(command_line, lambda args: last_validation(args.log))


if __name__ == "__main__":
    main()
