"""Print the perplexity of a language model at several context lengths, from logs of fairseq-eval-lm, as JSON.

    python perplexity.py RUN --pieces test.pieces --contexts 512 1024 [--also valid=valid.pieces] > scores.json

RUN has eval-CONTEXT.log for each context length and eval-SET.log for each additional set. By itself, fairseq-eval-lm
skips texts that are too long for the model; a perplexity over fewer than all symbols of a text, ends of lines included,
is therefore rejected.
"""

import argparse
import math
import re
from pathlib import Path

from arguments import named_file, parser, print_scores

from recurrence.files import read_json, read_text


def symbols(text: str) -> int:
    """Number of pieces of a text plus one end of line for each of its lines, which fairseq ends at line feeds only."""
    return sum(len(line.split()) + 1 for line in text.removesuffix("\n").split("\n"))


def perplexity(log: str, expected: int) -> float:
    """Perplexity per symbol, from the output of fairseq-eval-lm.

    Raises:
        ValueError: if there is no result, or one over a different number of symbols.
    """
    evaluated = re.search(r"Evaluated ([\d,]+) tokens", log)
    bits = re.search(r"Loss \(base 2\): ([\d.]+)", log)
    if not evaluated or not bits:
        raise ValueError("no result of fairseq-eval-lm")
    count = int(evaluated[1].replace(",", ""))
    if count != expected:
        raise ValueError(f"{count} symbols evaluated: must be all {expected}")
    return round(math.exp(float(bits[1]) * math.log(2)), 3)


def measured(args: argparse.Namespace) -> dict:
    """All scores.

    Raises:
        ValueError: if a log has no result, or one over a different number of symbols.
    """
    expected = symbols(read_text(args.pieces))
    scores = {"symbols": expected}
    for evaluated, pieces in [*((context, args.pieces) for context in args.contexts), *args.also]:
        log = read_text(args.run / f"eval-{evaluated}.log")
        scores[f"perplexity_{evaluated}"] = perplexity(log, symbols(read_text(pieces)))
    if args.more:
        scores.update(read_json(args.more, dict))
    return scores


def main() -> None:
    command_line = parser(__doc__)
    add = command_line.add_argument
    add("run", type=Path)
    add("--pieces", type=Path, required=True, help="the evaluated text, split into pieces")
    add("--contexts", type=int, nargs="+", required=True)
    add("--also", type=named_file, action="append", default=[], metavar="SET=PIECES", help="another set and its text")
    add("--more", type=Path, help="JSON file of scores to include in the output")
    print_scores(command_line, measured)


if __name__ == "__main__":
    main()
