"""Paired bootstrap over translations and over recordings."""

import json
import random

import pytest

from tests.support import cli
from tests.support.recipes import commands

PROGRAM = cli.REPOSITORY / "recipes" / "metrics" / "significance.py"
SPEECH = PROGRAM.with_name("significance_speech.py")


def sentences(words: int, wrong: float, seed: int) -> list[str]:
    """Numbers in a row, some of them replaced."""
    draw = random.Random(seed)
    rows = [[f"w{(17 * row + word) % 97}" for word in range(words)] for row in range(60)]
    return [" ".join("x" if draw.random() < wrong else word for word in row) for row in rows]


def test_a_clear_difference_is_significant_and_a_shuffle_of_errors_is_not(tmp_path):
    files = {"reference": 0.0, "baseline": 0.3, "same": 0.3, "better": 0.15}
    for seed, (name, wrong) in enumerate(files.items()):
        (tmp_path / name).write_text("\n".join(sentences(12, wrong, seed)) + "\n")
    systems = [f"{name}={tmp_path / name}" for name in ("baseline", "same", "better")]
    found = json.loads(cli.python(PROGRAM, *systems, "--reference", tmp_path / "reference"))
    better, same = (found["systems"][name] for name in ("better", "same"))
    assert better["p"] < 0.01 < 0.05 < same["p"]
    assert better["bleu"] - better["bleu_half_width"] > found["systems"]["baseline"]["bleu"]
    assert "p" not in found["systems"]["baseline"]
    assert "bs:1000" in found["signature"]


def test_a_system_with_other_sentences_is_rejected_by_name(tmp_path):
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "one").write_text("a\n")
    systems = (f"base={tmp_path / 'two'}", f"ours={tmp_path / 'one'}")
    output = cli.python(PROGRAM, *systems, "--reference", tmp_path / "two", fails=True)
    assert "ours: 1 sentences, but the reference has 2" in output
    twice = (f"base={tmp_path / 'two'}",) * 2
    output = cli.python(PROGRAM, *twice, "--reference", tmp_path / "two", fails=True)
    assert "base: is the name of 2 files: must be of one" in output
    equal = (twice[0], f"ours={tmp_path / 'two'}", "--samples", "0")
    assert "--samples 0: must be >= 1" in cli.python(PROGRAM, *equal, "--reference", tmp_path / "two", fails=True)
    rejected = cli.python(PROGRAM, "base", "--reference", tmp_path / "two", fails=True)
    assert "argument NAME=FILE: base: must have a value before and after =" in rejected


@pytest.mark.parametrize(
    ("scale", "sets"),
    [("smoke", 1), pytest.param("small", 1, marks=pytest.mark.slow), pytest.param("paper", 7, marks=pytest.mark.slow)],
)
def test_the_table_is_compared_with_universal_on_every_set(scale, sets, tmp_path):
    found = commands("takase/significance.sh", SCALE=scale, OUT=str(tmp_path), DATA_ROOT="")
    compared = [words for words in found if words[:2] == ["python", str(PROGRAM)]]
    assert len(compared) == len({words[-1] for words in compared}) == sets
    scored = {word.split("=")[0].removesuffix(".log") for words in found for word in words if "generate-" in word}
    for words in compared:
        systems, reference = words[2:9], words[words.index("--reference") + 1]
        assert [one.split("=")[0] for one in systems][:2] == ["universal", "sequence"]
        assert {one.split("=")[1].removesuffix(".txt") for one in systems} <= scored
        assert any(reference in word for line in found for word in line if line[1].endswith("score.py"))


def speech_log(path, hypotheses: list[str], references: list[str]):
    """A log of fairseq-generate --scoring wer with these texts, in another order than the test set's."""
    numbered = list(enumerate(zip(references, hypotheses, strict=True)))
    lines = [f"T-{number}\t{spoken}\nD-{number}\t-0.5\t{heard}" for number, (spoken, heard) in reversed(numbered)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_word_errors_are_compared_on_the_same_utterances(tmp_path):
    references = sentences(12, 0, 0)
    logs = {
        name: speech_log(tmp_path / name, sentences(12, wrong, seed), references)
        for seed, (name, wrong) in enumerate({"baseline": 0.3, "same": 0.3, "better": 0.15}.items())
    }
    systems = [f"{name}={path}" for name, path in logs.items()]
    found = json.loads(cli.python(SPEECH, *systems, f"again={logs['baseline']}"))
    wrong = sum(word == "x" for sentence in sentences(12, 0.3, 0) for word in sentence.split())
    assert found["baseline"] == {"wer": round(100 * wrong / (12 * 60), 2)}
    low, high = found["better"]["interval"]
    assert 0 < low < found["better"]["lead"] < high
    assert found["same"]["interval"][0] < 0 < found["same"]["interval"][1]
    assert found["again"] == {**found["baseline"], "lead": 0.0, "interval": [0.0, 0.0]}


def test_logs_of_other_test_sets_are_rejected_by_name(tmp_path):
    one = speech_log(tmp_path / "one", ["a b"], ["a b"])
    other = speech_log(tmp_path / "other", ["a b"], ["a c"])
    output = cli.python(SPEECH, f"base={one}", f"ours={other}", fails=True)
    assert f"ours: {other} is of another test set than the baseline's log" in output
    assert "base: is the name of 2 files" in cli.python(SPEECH, f"base={one}", f"base={other}", fails=True)
    (tmp_path / "none").write_text("")
    assert "none: has no references" in cli.python(SPEECH, f"base={one}", f"ours={tmp_path / 'none'}", fails=True)


@pytest.mark.parametrize(("scale", "sets"), [("smoke", 1), pytest.param("paper", 4, marks=pytest.mark.slow)])
def test_table_4_is_compared_with_universal_on_every_set(scale, sets, tmp_path):
    found = commands("takase/significance4.sh", SCALE=scale, OUT=str(tmp_path), DATA_ROOT="")
    compared = [words for words in found if words[:2] == ["python", str(SPEECH)]]
    assert len(compared) == len({words[-1] for words in compared}) == sets
    decoded = {words[-1] for words in found if words[0] == "fairseq-generate"}
    for words in compared:
        assert [one.split("=")[0] for one in words[2:7]] == ["universal", "vanilla", "sequence", "cycle", "cycle_rev"]
        assert {one.split("=")[1] for one in words[2:7]} <= decoded
