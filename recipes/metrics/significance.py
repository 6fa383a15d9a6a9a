"""Test whether the BLEU of translations differs significantly from a baseline's, by paired bootstrap; prints JSON.

    python significance.py --reference test.de BASE=generate-test.txt NAME=generate-test.txt... > significance.json

Each file has one plain translation per line, in the order of the reference. The resampling is sacreBLEU's (Koehn,
2004): `p` estimates how often a difference in BLEU as large as the observed one would arise from the choice of test
sentences if the two systems were equally good. Takase & Kiyono call p < 0.05 significant. The test compares single
training runs; it says nothing about differences between seeds.
"""

import argparse
import json
from pathlib import Path

from arguments import distinct, named_file
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest


def lines(path: Path) -> list[str]:
    """The sentences of a file."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def compare(systems: dict[str, list[str]], reference: list[str], samples: int, tokenize: str) -> dict:
    """BLEU of each system with the half-width of its 95 % interval, and p for all but the first, the baseline.

    Raises:
        ValueError: if a system has fewer or more sentences than the reference.
    """
    for name, sentences in systems.items():
        if len(sentences) != len(reference):
            raise ValueError(f"{name}: {len(sentences)} sentences, but the reference has {len(reference)}")
    test = PairedTest(list(systems.items()), {"BLEU": BLEU(tokenize=tokenize)}, [reference], "bs", samples)
    signatures, scores = test()
    results = {}
    for name, bleu in zip(scores["System"], scores["BLEU"]):
        results[name] = {"bleu": round(bleu.score, 2), "bleu_half_width": round(bleu.ci, 2)}
        if bleu.p_value is not None:
            results[name]["p"] = round(bleu.p_value, 4)
    return {"signature": str(signatures["BLEU"]), "systems": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "systems", type=named_file, nargs="+", metavar="NAME=FILE", help="translations; the baseline comes first"
    )
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=1000, help="number of resampled test sets (default 1000)")
    parser.add_argument("--tokenize", choices=BLEU.TOKENIZERS, default=BLEU.TOKENIZER_DEFAULT)
    args = parser.parse_args()
    if len(args.systems) < 2:
        parser.error("needs a baseline and at least one other system")
    if args.samples < 1:
        parser.error(f"--samples {args.samples}: must be >= 1")
    try:
        systems = {name: lines(path) for name, path in distinct(args.systems).items()}
        results = compare(systems, lines(args.reference), args.samples, args.tokenize)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
