"""Loss in nats a symbol, of a language model's evaluation or of the last validation of a training.

    python loss.py EVAL_LOG --symbols 111540 > scores.json
    python loss.py train.log > scores.json

fairseq prints it to base 2. Of an evaluation, by fairseq-eval-lm, a loss over other than all symbols is not a score:
fairseq leaves out texts that are too long for a model, with hardly a word. Of a training, whose log has JSON lines, it
is the loss without label smoothing.
"""

import argparse
import json
import math
import re
from pathlib import Path

from recurrence.analysis.logs import curve


def loss(text: str, symbols: int) -> float:
    """Nats a symbol.

    Raises:
        ValueError: if nothing was evaluated, or not that many symbols.
    """
    evaluated = re.search(r"Evaluated ([\d,]+) tokens", text)
    base2 = re.search(r"Loss \(base 2\): ([\d.]+)", text)
    if not evaluated or not base2:
        raise ValueError("no result of fairseq-eval-lm")
    found = int(evaluated[1].replace(",", ""))
    if found != symbols:
        raise ValueError(f"{found} symbols evaluated: must be all {symbols}")
    return float(base2[1]) * math.log(2)


def last_validation(log: Path) -> dict:
    """Nats a symbol at the end of a training, and its updates.

    Raises:
        ValueError: if the log has no validation.
    """
    *_, (updates, found) = curve(log, "updates", "valid_nll_loss")
    return {"loss": round(found * math.log(2), 4), "updates": int(updates)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--symbols", type=int, help="how many the evaluated text has; not of a training")
    arguments = parser.parse_args()
    try:
        if arguments.symbols is None:
            scores = last_validation(arguments.log)
        else:
            found = loss(arguments.log.read_text(encoding="utf-8"), arguments.symbols)
            scores = {"loss": round(found, 4), "symbols": arguments.symbols}
    except ValueError as error:
        parser.error(str(error))
    print(json.dumps(scores, indent=2))


if __name__ == "__main__":
    main()
