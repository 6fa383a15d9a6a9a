"""Loss of a language model in nats a symbol, from the output of fairseq-eval-lm.

    python loss.py EVAL_LOG --symbols 111540 > scores.json

The host prints it to base 2. A loss over other than all symbols is not a score: the host leaves out texts that are too
long for a model, with hardly a word.
"""

import argparse
import json
import math
import re
from pathlib import Path


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--symbols", type=int, required=True)
    arguments = parser.parse_args()
    found = loss(arguments.log.read_text(encoding="utf-8"), arguments.symbols)
    print(json.dumps({"loss": round(found, 4), "symbols": arguments.symbols}))


if __name__ == "__main__":
    main()
