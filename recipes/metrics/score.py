"""Print BLEU, chrF and exact matches of translations by fairseq-generate against detokenised references, as JSON.

    python score.py generate-NAME.log=REFERENCE... > scores.json

Takes the best hypothesis of each sentence and restores the order of the corpus; every reference must have a hypothesis.
fairseq-generate has already joined subwords (--remove-bpe) and detokenised (--tokenizer). The plain translations are
written beside each log, as .txt. With several test sets, bleu is the mean and bleu_NAME the score of one set.
"""

import argparse
import json
import re
from pathlib import Path
from statistics import mean

from arguments import distinct, named_file
from sacrebleu.metrics import BLEU, CHRF

BEST = re.compile(r"^D-(\d+)\t[^\t]*\t(.*)$")


def best_hypotheses(log: Path) -> dict[int, str]:
    """Maps the number of each sentence to the text of its first, best hypothesis."""
    best: dict[int, str] = {}
    for line in log.read_text(encoding="utf-8").split("\n"):
        match = BEST.match(line)
        if match:
            best.setdefault(int(match[1]), match[2])
    return best


def in_order(hypotheses: dict[int, str], count: int) -> list[str]:
    """The hypotheses in the order of the sentences.

    Raises:
        ValueError: if a sentence has no hypothesis, or there are more hypotheses than references.
    """
    missing = sorted(set(range(count)) - set(hypotheses))
    if missing or len(hypotheses) != count:
        raise ValueError(f"{len(hypotheses)} hypotheses for {count} references (first missing: {missing[:5]})")
    return [hypotheses[number] for number in range(count)]


def scores(hypotheses: list[str], references: list[str], tokenize: str) -> dict:
    """BLEU and chrF with their signatures, and the percentage of exact matches."""
    bleu, chrf = BLEU(tokenize=tokenize), CHRF()
    equal = sum(ours == theirs for ours, theirs in zip(hypotheses, references, strict=True))
    return {
        "sentences": len(references),
        "bleu": round(bleu.corpus_score(hypotheses, [references]).score, 2),
        "chrf": round(chrf.corpus_score(hypotheses, [references]).score, 2),
        "exact_match": round(100 * equal / len(references), 2),
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }


def scored(log: Path, reference: Path, tokenize: str) -> dict:
    """The scores of a log; writes its plain translations beside it.

    Raises:
        ValueError: names the log, if hypotheses and references differ in number.
    """
    references = reference.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    try:
        hypotheses = in_order(best_hypotheses(log), len(references))
    except ValueError as error:
        raise ValueError(f"{log}: {error}") from error
    log.with_suffix(".txt").write_text("\n".join(hypotheses) + "\n", encoding="utf-8")
    return scores(hypotheses, references, tokenize)


def merged(sets: dict[str, dict]) -> dict:
    """The mean scores of several test sets, with the BLEU of each; a single set keeps its scores.

    Args:
        sets: the result of `scores` for each set, by name.
    """
    combined = dict(next(iter(sets.values())))
    if len(sets) == 1:
        return combined
    combined["sentences"] = sum(result["sentences"] for result in sets.values())
    for metric in ("bleu", "chrf", "exact_match"):
        combined[metric] = round(mean(result[metric] for result in sets.values()), 2)
    return combined | {f"bleu_{name}": result["bleu"] for name, result in sets.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "sets",
        type=named_file,
        nargs="+",
        metavar="LOG=REFERENCE",
        help="log of fairseq-generate, and a file with one reference per line",
    )
    parser.add_argument(
        "--tokenize", choices=BLEU.TOKENIZERS, default=BLEU.TOKENIZER_DEFAULT, help="sacreBLEU's tokenizer"
    )
    args = parser.parse_args()
    try:
        pairs = [(Path(log), reference) for log, reference in args.sets]
        files = distinct([(log.stem.removeprefix("generate-"), (log, reference)) for log, reference in pairs])
        sets = {name: scored(log, reference, args.tokenize) for name, (log, reference) in files.items()}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(json.dumps(merged(sets), indent=2))


if __name__ == "__main__":
    main()
