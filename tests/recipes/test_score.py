"""BLEU of pieces and of split compounds, against the formula."""

import math
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "recipes" / "metrics"))

import score  # noqa: E402

OURS = ["the well-known cat sat on a mat", "a dog"]
THEIRS = ["the well-known cat is on the mat", "two dogs ran"]


def smoothed_bleu(hypotheses: list[list[str]], references: list[list[str]]) -> float:
    """BLEU with one reference; the k-th order without a match counts 1 / 2^k matches (NLTK's third smoothing)."""
    logs, empty = 0.0, 0
    for order in range(1, 5):
        matched = total = 0
        for ours, theirs in zip(hypotheses, references):
            grams = [Counter(zip(*(words[start:] for start in range(order)))) for words in (ours, theirs)]
            matched += (grams[0] & grams[1]).total()
            total += grams[0].total()
        if not matched:
            empty += 1
        logs += math.log((matched or 2.0**-empty) / total) / 4
    ours, theirs = (sum(map(len, texts)) for texts in (hypotheses, references))
    return 100 * math.exp(logs + min(0, 1 - theirs / ours))


def test_bleu_of_segments_is_that_of_the_formula():
    for segment in (str, score.compounds("en")):
        expected = smoothed_bleu(*([segment(text).split() for text in texts] for texts in (OURS, THEIRS)))
        assert score.segmented_bleu(OURS, THEIRS, segment) == pytest.approx(expected, abs=0.005)


def test_compounds_are_split_at_their_hyphens():
    assert score.compounds("en")("It's well-known.") == "It 's well ##AT##-##AT## known ."


def test_pieces_of_a_bert_vocabulary(tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\ncat\n##s\n")
    assert score.pieces(vocabulary)("the cats ran") == "the cat ##s [UNK]"


def test_both_are_scored_from_a_log(tmp_path):
    log, reference, vocabulary = (tmp_path / name for name in ("generate-test.log", "test.en", "vocab.txt"))
    log.write_text("".join(f"D-{number}\t-0.1\t{text}\n" for number, text in enumerate(OURS)))
    reference.write_text("\n".join(THEIRS) + "\n")
    vocabulary.write_text(
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n" + "\n".join(sorted(set(" ".join(OURS + THEIRS).split()))) + "\n"
    )
    segments = {"bleu_pieces": score.pieces(vocabulary), "bleu_compounds": score.compounds("en")}
    found = score.scored(log, reference, "13a", segments)
    sets = score.merged({"one": found, "two": {**found, "bleu_pieces": 0.0}})
    assert found["bleu_pieces"] > 0
    assert sets["bleu_pieces"] == pytest.approx(found["bleu_pieces"] / 2, abs=0.006)
    assert sets["bleu_compounds"] == found["bleu_compounds"]
