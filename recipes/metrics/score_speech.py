"""Print the word error rates that fairseq-generate --scoring wer has measured, as JSON.

    python score_speech.py RUN DATA SET... > scores.json

Reads RUN/SET.log and DATA/SET.tsv; every utterance of a set must have a hypothesis. fairseq divides the number of word
edits by the number of reference words.
"""

import argparse
import re
from pathlib import Path

from arguments import parser, print_scores
from score import best_hypotheses, in_order

from recurrence.files import read_text


def error_rate(log: Path, manifest: Path) -> float:
    """Word error rate in %.

    Raises:
        ValueError: if an utterance has no hypothesis, or the log does not have exactly one error rate.
    """
    utterances = len(read_text(manifest).splitlines()) - 1
    in_order(best_hypotheses(log), utterances)
    rates = re.findall(r"^Generate .*: WER: ([\d.]+)$", read_text(log), re.M)
    if len(rates) != 1:
        raise ValueError(f"{log}: {len(rates)} word error rates: must be one")
    return float(rates[0])


def measured(args: argparse.Namespace) -> dict[str, float]:
    """The error rate of each set."""
    return {f"wer_{name}": error_rate(args.run / f"{name}.log", args.data / f"{name}.tsv") for name in args.sets}


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("run", type=Path, help="folder of the logs")
    command_line.add_argument("data", type=Path, help="folder of the .tsv manifests")
    command_line.add_argument("sets", nargs="+", metavar="SET")
    print_scores(command_line, measured)


if __name__ == "__main__":
    main()
