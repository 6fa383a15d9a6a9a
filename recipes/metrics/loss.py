"""Print the loss of a language model in nats per symbol, from an evaluation log or a training log, as JSON.

    python loss.py EVAL_LOG --symbols 111540 > scores.json
    python loss.py train.log > scores.json

fairseq prints losses to base 2. EVAL_LOG is the output of fairseq-eval-lm, which skips texts that are too long for the
model and barely mentions it; a loss over fewer than all symbols is therefore rejected. For a training log in fairseq's
JSON format, the result is the loss without label smoothing at the last validation.
"""

import argparse
import json
import math
import re
from pathlib import Path

from recurrence.analysis.logs import curve


def loss(text: str, symbols: int) -> float:
    """Nats per symbol, from the output of fairseq-eval-lm.

    Raises:
        ValueError: if the text has no result, or one over a different number of symbols.
    """
    evaluated = re.search(r"Evaluated ([\d,]+) tokens", text)
    base2 = re.search(r"Loss \(base 2\): ([\d.]+)", text)
    if not evaluated or not base2:
        raise ValueError("no result of fairseq-eval-lm")
    count = int(evaluated[1].replace(",", ""))
    if count != symbols:
        raise ValueError(f"{count} symbols evaluated: must be all {symbols}")
    return float(base2[1]) * math.log(2)


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
    parser.add_argument("--symbols", type=int, help="length of the evaluated text; omit for a training log")
    args = parser.parse_args()
    try:
        if args.symbols is None:
            scores = last_validation(args.log)
        else:
            nats = loss(args.log.read_text(encoding="utf-8"), args.symbols)
            scores = {"loss": round(nats, 4), "symbols": args.symbols}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(json.dumps(scores, indent=2))


if __name__ == "__main__":
    main()
