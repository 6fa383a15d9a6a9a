"""Print the results of the translation demo: some translations, the scores, the stored parameters and the folders.

python report.py RUN_FOLDER --once RUN_FOLDER --data DATA_FOLDER --arch ringformer_tiny [flags of fairseq-train]
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from fairseq.data import Dictionary

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "records"))

from collect import training

from fairseq_plugin.build import build_architecture, given_options
from recurrence.count import stored

SHOWN = 6
UNSHARED = "vanilla_tiny"


def lines(path: Path) -> list[str]:
    """The lines of a text file."""
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


def translations(run: Path, data: Path) -> list[str]:
    """The first sentences of the test set with their translations, and up to two wrong translations of later ones."""
    triples = list(zip(lines(data / "test.en"), lines(run / "generate.txt"), lines(data / "test.de"), strict=True))
    wrong = [triple for triple in triples[SHOWN:] if triple[1] != triple[2]]
    examples = []
    for source, ours, reference in triples[:SHOWN] + wrong[:2]:
        verdict = "" if ours == reference else f"\n      should be {reference}"
        examples.append(f"  {source}\n   -> {ours}{verdict}")
    return examples


def unshared(data: Path, flags: list[str]) -> int:
    """Stored parameters of the model with a block for each pass; other flags than its own are ignored."""
    symbols, (options, _) = Dictionary.load(str(data / "bin" / "dict.de.txt")), given_options(UNSHARED, flags)
    with torch.device("meta"):
        return stored(build_architecture(UNSHARED, symbols, symbols, **options))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--once", type=Path, required=True, help="the run with one pass on each side")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--arch", required=True)
    args, flags = parser.parse_known_args()
    try:
        metrics, once = (json.loads((run / "scores.json").read_text()) | training(run) for run in (args.run, args.once))
        examples, whole = translations(args.run, args.data), unshared(args.data, flags)
    except OSError as error:
        parser.error(str(error))
    print("\nTranslations of numbers not seen in training:", *examples, sep="\n")
    print(f"\nScores on {metrics['sentences']:,} such numbers, after {metrics['wall_s']} s of training")
    print(f"  exact match        {metrics['exact_match']:.1f} %")
    print(f"  BLEU               {metrics['bleu']:.2f}   ({metrics['bleu_signature']})")
    print(
        f"  with one pass on each side: exact match {once['exact_match']:.1f} %, {once['params']:,} stored parameters"
    )
    print("\nStored parameters, including embeddings and output layer:")
    for name, number in ((args.arch, metrics["params"]), (UNSHARED, whole)):
        print(f"  {name:18} {number:>10,}")
    print(f"  {args.arch} stores {100 * metrics['params'] / whole:.0f} % of {UNSHARED}")
    print(f"\nData: {args.data}")
    print(f"Checkpoints, logs and translations: {args.run}")


if __name__ == "__main__":
    main()
