"""Print the word and phoneme error rates of pronunciations by fairseq-generate, in %, as JSON.

    python pronunciation.py generate.log=REFERENCES > scores.json

Each line of REFERENCES has all pronunciations of a word, separated by tabs. A word is right if the model's equals one
of them. Phoneme errors are insertions, deletions and substitutions to the nearest one, over its number of phonemes.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from arguments import named_file, parser, print_scores
from score import hypotheses_and_references


def edits(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """The fewest insertions, deletions and substitutions that turn one sequence into the other."""
    row = list(range(len(theirs) + 1))
    for number, symbol in enumerate(ours, 1):
        diagonal, row[0] = row[0], number
        for place, other in enumerate(theirs, 1):
            found = min(row[place] + 1, row[place - 1] + 1, diagonal + (symbol != other))
            diagonal, row[place] = row[place], found
    return row[-1]


def error_rates(hypotheses: list[str], references: list[str]) -> dict[str, float]:
    """The error rates in %; a reference has all pronunciations of a word, separated by tabs."""
    wrong = errors = phonemes = 0
    for text, known in zip(hypotheses, references, strict=True):
        ours = text.split()
        fewest, length = min((edits(ours, theirs), len(theirs)) for theirs in map(str.split, known.split("\t")))
        wrong, errors, phonemes = wrong + (fewest > 0), errors + fewest, phonemes + length
    if not phonemes:
        raise ValueError("the references must have a phoneme")
    return {
        "words": len(references),
        "word_error_rate": round(100 * wrong / len(references), 2),
        "phoneme_error_rate": round(100 * errors / phonemes, 2),
    }


def measured(args: argparse.Namespace) -> dict[str, float]:
    """The error rates of a log."""
    log, references = args.set
    return error_rates(*hypotheses_and_references(Path(log), references))


def main() -> None:
    command_line = parser(__doc__)
    files = "log of fairseq-generate, and a file with the pronunciations of a word on each line"
    command_line.add_argument("set", type=named_file, metavar="LOG=REFERENCES", help=files)
    print_scores(command_line, measured)


if __name__ == "__main__":
    main()
