"""Whether translations differ from a baseline's by more than the choice of the test sentences: paired bootstrap.

    python significance.py --reference test.de BASE=generate-test.txt NAME=generate-test.txt... > significance.json

Each file has one plain translation a line, in the order of the reference. The resampling is sacreBLEU's (Koehn, 2004):
`p` is how often resampled test sets show a difference in BLEU as large as the one found although there is none; below
0.05 is what Takase & Kiyono call significant. One training run each: differences between seeds are not in it.
"""

import argparse
import json
from pathlib import Path

from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest


def lines(path: Path) -> list[str]:
    """Sentences of a file."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def compare(systems: dict[str, list[str]], reference: list[str], samples: int, tokenize: str) -> dict:
    """BLEU of every system with the half-width of its 95 % interval, and p of all but the first, the baseline.

    Raises:
        ValueError: a system has fewer or more sentences than the reference.
    """
    for name, sentences in systems.items():
        if len(sentences) != len(reference):
            raise ValueError(f"{name}: {len(sentences)} sentences, but the reference has {len(reference)}")
    test = PairedTest(list(systems.items()), {"BLEU": BLEU(tokenize=tokenize)}, [reference], "bs", samples)
    signatures, scores = test()
    found = {}
    for name, one in zip(scores["System"], scores["BLEU"]):
        found[name] = {"bleu": round(one.score, 2), "bleu_half_width": round(one.ci, 2)}
        if one.p_value is not None:
            found[name]["p"] = round(one.p_value, 4)
    return {"signature": str(signatures["BLEU"]), "systems": found}


def named(text: str) -> tuple[str, Path]:
    """NAME=FILE."""
    name, _, path = text.partition("=")
    if not path:
        raise argparse.ArgumentTypeError(f"{text}: must be NAME=FILE")
    return name, Path(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", type=named, nargs="+", metavar="NAME=FILE", help="the baseline first")
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=1000, help="resampled test sets (default 1000)")
    parser.add_argument("--tokenize", choices=BLEU.TOKENIZERS, default=BLEU.TOKENIZER_DEFAULT)
    given = parser.parse_args()
    if len(given.systems) < 2:
        parser.error("needs a baseline and at least one other system")
    systems = {name: lines(path) for name, path in given.systems}
    try:
        found = compare(systems, lines(given.reference), given.samples, given.tokenize)
    except ValueError as error:
        parser.error(str(error))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
