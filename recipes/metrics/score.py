"""Print BLEU, chrF and exact matches of translations by fairseq-generate against detokenised references, as JSON.

    python score.py generate-NAME.log=REFERENCE... [--pieces VOCABULARY] [--compounds LANGUAGE] > scores.json
    python score.py generate-NAME.log=REFERENCE... --exact > scores.json

Takes the best hypothesis of each sentence and restores the order of the corpus; every reference must have a hypothesis.
fairseq-generate has already joined subwords (--remove-bpe) and detokenised (--tokenizer). The plain translations are
written beside each log, as .txt. With several test sets, bleu is the mean and bleu_NAME the score of one set.

--pieces adds bleu_pieces, BLEU of the pieces of a vocabulary, as RingFormer's published code scores: NLTK's corpus BLEU
with its third smoothing, which is sacreBLEU's `exp`, of references that are cut to --longest pieces. --compounds adds
bleu_compounds_NAME, BLEU of Moses' tokens with compounds split at their hyphens: the procedure of Vaswani et al.
(arXiv:1706.03762), as in Ott et al. (arXiv:1806.00187), which Takase & Kiyono use in footnote 2. Neither can be
compared with sacreBLEU's own score. --exact prints only the percentages of exact matches: exact_match is that of the
first set, exact_match_NAME that of each other one.
"""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from arguments import named_file, parser, print_scores
from sacrebleu.metrics import BLEU, CHRF

from recurrence.files import read_text

COMPOUND = re.compile(r"(\S)-(\S)")
Segment = Callable[[str], list[str]]  # a text to tokens
BEST = re.compile(r"^D-(\d+)\t[^\t]*\t(.*)$")


def best_hypotheses(log: Path) -> dict[int, str]:
    """Maps the number of each sentence to the text of its first, best hypothesis."""
    best: dict[int, str] = {}
    for line in read_text(log).split("\n"):
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


def exact_match(hypotheses: list[str], references: list[str]) -> float:
    """The percentage of hypotheses that equal their reference."""
    equal = sum(ours == theirs for ours, theirs in zip(hypotheses, references, strict=True))
    return round(100 * equal / len(references), 2)


def scores(hypotheses: list[str], references: list[str], tokenize: str) -> dict:
    """BLEU and chrF with their signatures, and the percentage of exact matches."""
    bleu, chrf = BLEU(tokenize=tokenize), CHRF()
    return {
        "sentences": len(references),
        "bleu": round(bleu.corpus_score(hypotheses, [references]).score, 2),
        "chrf": round(chrf.corpus_score(hypotheses, [references]).score, 2),
        "exact_match": exact_match(hypotheses, references),
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }


def pieces(vocabulary: Path) -> Segment:
    """The function that splits a text into the pieces of a sentencepiece model, or of a cased BERT vocabulary."""
    if vocabulary.suffix == ".model":
        import sentencepiece

        model = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
        return lambda text: model.encode(text, out_type=str)
    import tokenizers

    bert = tokenizers.BertWordPieceTokenizer(str(vocabulary), lowercase=False, strip_accents=False)
    return lambda text: bert.encode(text, add_special_tokens=False).tokens


def compounds(language: str) -> Segment:
    """The function that splits a text into Moses' tokens, and compounds such as `well-known` at their hyphens."""
    import sacremoses

    moses = sacremoses.MosesTokenizer(language)
    return lambda text: COMPOUND.sub(
        r"\1 ##AT##-##AT## \2", moses.tokenize(text, return_str=True, escape=False)
    ).split()


def segmented_bleu(hypotheses: list[str], references: list[str], segment: Segment, longest: int | None = None) -> float:
    """BLEU of the tokens into which texts are split; of a reference only the first `longest` count."""
    ours = [" ".join(segment(text)) for text in hypotheses]
    theirs = [" ".join(segment(text)[:longest]) for text in references]
    return round(BLEU(tokenize="none", smooth_method="exp", force=True).corpus_score(ours, [theirs]).score, 2)


def hypotheses_and_references(log: Path, reference: Path) -> tuple[list[str], list[str]]:
    """The best hypotheses of a log and the lines of the reference.

    Raises:
        ValueError: names the log, if they differ in number.
    """
    references = read_text(reference).removesuffix("\n").split("\n")
    try:
        return in_order(best_hypotheses(log), len(references)), references
    except ValueError as error:
        raise ValueError(f"{log}: {error}") from error


def merged(sets: dict[str, dict]) -> dict:
    """The mean scores of several test sets, with the BLEU of each; a single set keeps its scores.

    Args:
        sets: the result of `scores` for each set, by name.
    """
    combined = dict(next(iter(sets.values())))
    if len(sets) == 1:
        return combined
    combined["sentences"] = sum(result["sentences"] for result in sets.values())
    for metric in combined.keys() & {"bleu", "chrf", "exact_match", "bleu_pieces"}:
        combined[metric] = round(mean(result[metric] for result in sets.values()), 2)
    return combined | {f"bleu_{name}": result["bleu"] for name, result in sets.items()}


def measured(args: argparse.Namespace) -> dict:
    """All scores; writes the plain translations of each log beside it.

    Raises:
        ValueError: two logs have the same name, or hypotheses and references differ in number; names the log.
    """
    names = [Path(log).stem.removeprefix("generate-") for log, _ in args.sets]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name}: is the name of {names.count(name)} files: must be of one")
    files = {name: (Path(log), reference) for name, (log, reference) in zip(names, args.sets)}
    texts = {name: hypotheses_and_references(*pair) for name, pair in files.items()}
    if args.exact:
        (_, first), *others = ((name, exact_match(*pair)) for name, pair in texts.items())
        return {"exact_match": first, **{f"exact_match_{name}": value for name, value in others}}
    for (log, _), (hypotheses, _) in zip(files.values(), texts.values()):
        log.with_suffix(".txt").write_text("\n".join(hypotheses) + "\n", encoding="utf-8")
    found = {name: scores(*pair, args.tokenize) for name, pair in texts.items()}
    if args.pieces:
        segment = pieces(args.pieces)
        for name, pair in texts.items():
            found[name]["bleu_pieces"] = segmented_bleu(*pair, segment, args.longest)
    together = merged(found)
    if args.compounds:
        segment = compounds(args.compounds)
        together |= {f"bleu_compounds_{name}": segmented_bleu(*pair, segment) for name, pair in texts.items()}
    return together


def command_line() -> argparse.ArgumentParser:
    """The options."""
    found = parser(__doc__)
    add, logs = found.add_argument, "log of fairseq-generate, and a file with one reference per line"
    add("sets", type=named_file, nargs="+", metavar="LOG=REFERENCE", help=logs)
    add("--tokenize", choices=BLEU.TOKENIZERS, default=BLEU.TOKENIZER_DEFAULT, help="sacreBLEU's tokenizer")
    add("--pieces", type=Path, metavar="VOCABULARY", help="a sentencepiece model, or BERT's vocab.txt")
    add("--longest", type=int, metavar="PIECES", help="of a reference, for --pieces (default: all)")
    add("--compounds", metavar="LANGUAGE", help="of the references, for Moses' tokenizer")
    add("--exact", action="store_true", help="exact matches only")
    return found


def main() -> None:
    print_scores(command_line(), measured)


if __name__ == "__main__":
    main()
