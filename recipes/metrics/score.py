"""Print BLEU, chrF and exact matches of translations by fairseq-generate against detokenised references, as JSON.

    python score.py generate-NAME.log=REFERENCE... [--pieces VOCABULARY] [--compounds LANGUAGE] > scores.json

Takes the best hypothesis of each sentence and restores the order of the corpus; every reference must have a hypothesis.
fairseq-generate has already joined subwords (--remove-bpe) and detokenised (--tokenizer). The plain translations are
written beside each log, as .txt. With several test sets, bleu is the mean and bleu_NAME the score of one set.

--pieces adds bleu_pieces, BLEU of the pieces of a vocabulary, as RingFormer's published code scores: NLTK's corpus BLEU
with its third smoothing, which is sacreBLEU's `exp`. --compounds adds bleu_compounds, BLEU of Moses' tokens with
compounds split at their hyphens: the procedure of Vaswani et al. (arXiv:1706.03762), as in Ott et al.
(arXiv:1806.00187), which Takase & Kiyono use in footnote 2. Neither can be compared with sacreBLEU's own score.
"""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from arguments import distinct, named_file
from sacrebleu.metrics import BLEU, CHRF

COMPOUND = re.compile(r"(\S)-(\S)")
Segment = Callable[[str], str]  # a text to tokens with spaces between them
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


def pieces(vocabulary: Path) -> Segment:
    """Splits a text into the pieces of a sentencepiece model, or of a cased BERT vocabulary."""
    if vocabulary.suffix == ".model":
        import sentencepiece

        model = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
        return lambda text: " ".join(model.encode(text, out_type=str))
    import tokenizers

    bert = tokenizers.BertWordPieceTokenizer(str(vocabulary), lowercase=False, strip_accents=False)
    return lambda text: " ".join(bert.encode(text, add_special_tokens=False).tokens)


def compounds(language: str) -> Segment:
    """Splits a text into Moses' tokens, and compounds such as `well-known` at their hyphens."""
    import sacremoses

    moses = sacremoses.MosesTokenizer(language)
    return lambda text: COMPOUND.sub(r"\1 ##AT##-##AT## \2", moses.tokenize(text, return_str=True, escape=False))


def segmented_bleu(hypotheses: list[str], references: list[str], segment: Segment) -> float:
    """BLEU of the tokens into which texts are split."""
    ours, theirs = ([segment(text) for text in texts] for texts in (hypotheses, references))
    return round(BLEU(tokenize="none", smooth_method="exp", force=True).corpus_score(ours, [theirs]).score, 2)


def hypotheses_and_references(log: Path, reference: Path) -> tuple[list[str], list[str]]:
    """The best hypotheses of a log and the lines of the reference.

    Raises:
        ValueError: names the log, if they differ in number.
    """
    references = reference.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    try:
        return in_order(best_hypotheses(log), len(references)), references
    except ValueError as error:
        raise ValueError(f"{log}: {error}") from error


def scored(log: Path, reference: Path, tokenize: str, segments: dict[str, Segment]) -> dict:
    """The scores of a log; writes its plain translations beside it.

    Raises:
        ValueError: names the log, if hypotheses and references differ in number.
    """
    hypotheses, references = hypotheses_and_references(log, reference)
    log.with_suffix(".txt").write_text("\n".join(hypotheses) + "\n", encoding="utf-8")
    more = {name: segmented_bleu(hypotheses, references, segment) for name, segment in segments.items()}
    return scores(hypotheses, references, tokenize) | more


def merged(sets: dict[str, dict]) -> dict:
    """The mean scores of several test sets, with the BLEU of each; a single set keeps its scores.

    Args:
        sets: the result of `scores` for each set, by name.
    """
    combined = dict(next(iter(sets.values())))
    if len(sets) == 1:
        return combined
    combined["sentences"] = sum(result["sentences"] for result in sets.values())
    for metric in combined.keys() & {"bleu", "chrf", "exact_match", "bleu_pieces", "bleu_compounds"}:
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
    parser.add_argument("--pieces", type=Path, metavar="VOCABULARY", help="a sentencepiece model, or BERT's vocab.txt")
    parser.add_argument("--compounds", metavar="LANGUAGE", help="of the references, for Moses' tokenizer")
    args = parser.parse_args()
    try:
        segments = {"bleu_pieces": pieces(args.pieces)} if args.pieces else {}
        if args.compounds:
            segments["bleu_compounds"] = compounds(args.compounds)
        pairs = [(Path(log), reference) for log, reference in args.sets]
        files = distinct([(log.stem.removeprefix("generate-"), (log, reference)) for log, reference in pairs])
        sets = {name: scored(log, reference, args.tokenize, segments) for name, (log, reference) in files.items()}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(json.dumps(merged(sets), indent=2))


if __name__ == "__main__":
    main()
