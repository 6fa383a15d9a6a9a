"""Perplexities of a language model at several contexts, from the output of fairseq-eval-lm.

    python perplexity.py RUN --pieces test.pieces --contexts 512 1024 [--also valid=valid.pieces] > scores.json

RUN holds eval-CONTEXT.log for each context, and eval-SET.log for each other set. Every one has to tell of all symbols
of the text, ends of lines included: a perplexity of a part is not a score.
"""

import argparse
import json
import math
from pathlib import Path

from loss import loss


def symbols(text: str) -> int:
    """Pieces of a text, and the end of each of its lines."""
    return sum(len(line.split()) + 1 for line in text.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--pieces", type=Path, required=True, help="the text that was evaluated, cut into symbols")
    parser.add_argument("--contexts", type=int, nargs="+", required=True)
    parser.add_argument("--also", action="append", default=[], metavar="SET=PIECES", help="another evaluated text")
    parser.add_argument("--more", type=Path, help="JSON with further scores")
    arguments = parser.parse_args()
    expected = symbols(arguments.pieces.read_text(encoding="utf-8"))
    scores = {"symbols": expected}
    for context in arguments.contexts:
        log = (arguments.run / f"eval-{context}.log").read_text(encoding="utf-8")
        scores[f"perplexity_{context}"] = round(math.exp(loss(log, expected)), 3)
    for name, _, pieces in (one.partition("=") for one in arguments.also):
        log = (arguments.run / f"eval-{name}.log").read_text(encoding="utf-8")
        scores[f"perplexity_{name}"] = round(math.exp(loss(log, symbols(Path(pieces).read_text(encoding="utf-8")))), 3)
    if arguments.more:
        scores |= json.loads(arguments.more.read_text())
    print(json.dumps(scores, indent=2))


if __name__ == "__main__":
    main()
