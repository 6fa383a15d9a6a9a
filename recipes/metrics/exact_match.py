"""Print the percentage of sequences that fairseq-generate writes exactly as the reference, as JSON.

    python exact_match.py generate-NAME.log=REFERENCE... > scores.json

Takes the best hypothesis of each sequence; every reference must have one. `exact_match` is the score of the first set,
`exact_match_NAME` that of each other set.
"""

import argparse
import json
from pathlib import Path

from arguments import distinct, named_file
from score import hypotheses_and_references


def exact_match(log: Path, reference: Path) -> float:
    """The percentage of exact matches.

    Raises:
        ValueError: names the log, if hypotheses and references differ in number.
    """
    pairs = list(zip(*hypotheses_and_references(log, reference), strict=True))
    return round(100 * sum(ours == theirs for ours, theirs in pairs) / len(pairs), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "sets",
        type=named_file,
        nargs="+",
        metavar="LOG=REFERENCE",
        help="log of fairseq-generate, and a file with one reference per line",
    )
    sets = [(Path(log), reference) for log, reference in parser.parse_args().sets]
    try:
        files = distinct([(log.stem.removeprefix("generate-"), (log, reference)) for log, reference in sets])
        found = {name: exact_match(*pair) for name, pair in files.items()}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    first, *others = found
    print(
        json.dumps({"exact_match": found[first], **{f"exact_match_{name}": found[name] for name in others}}, indent=2)
    )


if __name__ == "__main__":
    main()
