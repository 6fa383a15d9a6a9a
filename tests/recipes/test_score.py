"""BLEU of pieces and of split compounds, against the formula."""

import math
from argparse import Namespace
from collections import Counter

import automaton
import eight_bits
import pronunciation
import pytest
import score

from fairseq_plugin.models.ringformer import WEIGHTS

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
    for segment in (str.split, score.compounds("en")):
        expected = smoothed_bleu(*([segment(text) for text in texts] for texts in (OURS, THEIRS)))
        assert score.segmented_bleu(OURS, THEIRS, segment) == pytest.approx(expected, abs=0.005)


def test_compounds_are_split_at_their_hyphens():
    assert score.compounds("en")("It's well-known.") == ["It", "'s", "well", "##AT##-##AT##", "known", "."]


def test_pieces_of_a_bert_vocabulary(tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\ncat\n##s\n")
    assert score.pieces(vocabulary)("the cats ran") == ["the", "cat", "##s", "[UNK]"]


def test_long_references_are_cut():
    cut = [" ".join(text.split()[:2]) for text in THEIRS]
    assert score.segmented_bleu(OURS, THEIRS, str.split, 2) == score.segmented_bleu(OURS, cut, str.split)
    assert score.segmented_bleu(OURS, THEIRS, str.split, 2) != score.segmented_bleu(OURS, THEIRS, str.split)


def measured(tmp_path, *options: str) -> dict:
    """The scores of two sets, of which the second has other references."""
    reference, other = tmp_path / "test.en", tmp_path / "other.en"
    reference.write_text("\n".join(THEIRS) + "\n")
    other.write_text("\n".join(OURS) + "\n")
    sets = []
    for name, file in (("test", reference), ("other", other)):
        log = tmp_path / f"generate-{name}.log"
        log.write_text("".join(f"D-{number}\t-0.1\t{text}\n" for number, text in enumerate(OURS)))
        sets.append(f"{log}={file}")
    return score.measured(score.command_line().parse_args([*sets, *options]))


def test_all_are_scored_from_logs(tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    words = sorted({*" ".join(OURS + THEIRS).replace("-", " - ").split()})
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]) + "\n")
    found = measured(tmp_path, "--pieces", str(vocabulary), "--compounds", "en")
    of_pieces = score.segmented_bleu(OURS, THEIRS, score.pieces(vocabulary))
    assert found["bleu_pieces"] == pytest.approx((of_pieces + 100) / 2, abs=0.006)
    assert found["bleu_compounds_test"] == score.segmented_bleu(OURS, THEIRS, score.compounds("en"))
    assert found["bleu_compounds_other"] == found["bleu_other"] == 100
    assert found["exact_match"] == 50
    assert (tmp_path / "generate-test.txt").read_text().splitlines() == OURS


def test_only_exact_matches_are_of_each_set(tmp_path):
    assert measured(tmp_path, "--exact") == {"exact_match": 0, "exact_match_other": 100}


@pytest.mark.parametrize(
    ("ours", "theirs", "fewest"),
    [
        ("K AE T", "K AE T", 0),
        ("K AE T", "K AA T S", 2),
        ("", "K AE T", 3),
        ("K AE T", "AE T", 1),
        ("T AE K", "K AE T", 2),
    ],
)
def test_edits_are_the_fewest(ours, theirs, fewest):
    assert pronunciation.edits(ours.split(), theirs.split()) == fewest
    assert pronunciation.edits(theirs.split(), ours.split()) == fewest


@pytest.mark.slow
def test_a_checkpoint_is_scored_in_eight_bits(tmp_path):
    pytest.importorskip("onnxscript")
    (shipped,), letters, references = WEIGHTS.iterdir(), tmp_path / "letters", tmp_path / "references"
    letters.write_text("e u p h e m i s t i c\nc a t\n")
    references.write_text("Y UW F AH M IH S T IH K\tY UW\nD AO G\n")
    found = eight_bits.measured(
        Namespace(model=(str(shipped / "model.pt"), shipped), letters=letters, references=references)
    )
    assert found == {
        "words": 2,
        "word_error_rate": 50.0,
        "phoneme_error_rate": pytest.approx(100 * 3 / 13, abs=0.01),
    } | {"megabytes": pytest.approx(0.679, abs=0.01)}


def test_errors_are_those_to_the_nearest_pronunciation():
    known = ["T AH M EY T OW\tT AH M AA T OW", "R EH D\tR IY D Z", "D AO G"]
    found = pronunciation.error_rates(["T AH M AA T OW", "R IY D", "K AE T S"], known)
    assert found == {
        "words": 3,
        "word_error_rate": 66.67,
        "phoneme_error_rate": round(100 * (0 + 1 + 4) / (6 + 3 + 3), 2),
    }


@pytest.mark.parametrize(("pass_steps", "asked"), [(False, [1, 12]), (True, [1, 12, 24])])
def test_rows_are_predicted_for_the_steps_that_the_text_can_ask_for(pass_steps, asked):
    task = Namespace(cfg=Namespace(pass_steps=pass_steps, steps=12))
    assert automaton.reachable(task, [0, 1, 12, 24]) == asked
    with pytest.raises(ValueError, match="^--steps 0 -1: one must be >= 1"):
        automaton.reachable(task, [0, -1])
