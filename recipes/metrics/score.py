"""Score the output of fairseq-generate against plain references, detokenised.

    python score.py generate-NAME.log=REFERENCE... > scores.json

Takes the best hypothesis of every sentence, restores the corpus order, and demands one hypothesis for each reference: a
score over fewer sentences is not a score. fairseq itself joins pieces (--remove-bpe) and words (--tokenizer). The plain
translations go beside each log, as .txt. Of several test sets, bleu is the mean and bleu_NAME that of each.
"""

import argparse
import json
import re
from pathlib import Path
from statistics import mean

from sacrebleu.metrics import BLEU, CHRF

BEST = re.compile(r"^D-(\d+)\t[^\t]*\t(.*)$")


def best_hypotheses(log: Path) -> dict[int, str]:
    """Sentence number -> text of the first (best) hypothesis."""
    found: dict[int, str] = {}
    for line in log.read_text(encoding="utf-8").split("\n"):
        match = BEST.match(line)
        if match:
            found.setdefault(int(match[1]), match[2])
    return found


def in_order(hypotheses: dict[int, str], count: int) -> list[str]:
    """The hypotheses as a list.

    Raises:
        ValueError: a sentence has no hypothesis, or there are more than the references.
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


def merged(sets: dict[str, dict]) -> dict:
    """Scores as those of one set: means over the sets, and the BLEU of each; those of a single set stay as they are.

    Args:
        sets: what `scores` returned, by the name of the set.
    """
    found = dict(next(iter(sets.values())))
    if len(sets) == 1:
        return found
    found["sentences"] = sum(one["sentences"] for one in sets.values())
    for metric in ("bleu", "chrf", "exact_match"):
        found[metric] = round(mean(one[metric] for one in sets.values()), 2)
    return found | {f"bleu_{name}": one["bleu"] for name, one in sets.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="LOG=REFERENCE", help="of fairseq-generate; one sentence a line")
    parser.add_argument(
        "--tokenize", choices=BLEU.TOKENIZERS, default=BLEU.TOKENIZER_DEFAULT, help="sacreBLEU's tokenizer"
    )
    arguments, sets = parser.parse_args(), {}
    for one in arguments.sets:
        log, _, reference = map(Path, one.partition("="))
        references = reference.read_text(encoding="utf-8").rstrip("\n").split("\n")
        hypotheses = in_order(best_hypotheses(log), len(references))
        log.with_suffix(".txt").write_text("\n".join(hypotheses) + "\n", encoding="utf-8")
        sets[log.stem.removeprefix("generate-")] = scores(hypotheses, references, arguments.tokenize)
    print(json.dumps(merged(sets), indent=2))


if __name__ == "__main__":
    main()
