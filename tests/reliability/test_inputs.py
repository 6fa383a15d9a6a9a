"""Bad input ends a command with one line that names the file or option; good lines beside it are still answered."""

import re
import shutil
from pathlib import Path

import pytest

from tests.reliability.jobs import training_job
from tests.support import cli

pytestmark = pytest.mark.slow


def one_line(ended, status: int = 1) -> str:
    """The one line with which a command failed; asserts that there is no traceback."""
    assert ended.status == status, ended.log[-2000:]
    assert "Traceback" not in ended.log
    assert "Exception ignored" not in ended.log
    assert "error: " in ended.last_line
    return ended.last_line


def changed(data: Path, folder: Path, pattern: str, edit) -> Path:
    """A copy of a corpus with some of its files edited; None removes them."""
    shutil.copytree(data, folder)
    for path in folder.glob(pattern):
        content = edit(path.read_bytes())
        path.unlink() if content is None else path.write_bytes(content)
    return folder


def lines(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


def test_training_rejects_a_dictionary_in_another_order(warm, text, straight, tmp_path):
    data = changed(text, tmp_path / "data", "dict.*", lambda old: b"".join(lines(old)[::-1]))
    flags = ("--restore-file", straight / "checkpoint_last.pt", "--max-epoch", "4")
    (ended,) = warm.run(training_job(data, tmp_path / "run", *flags))
    assert "was trained with another" in one_line(ended)
    assert "begin training epoch" not in ended.log


def test_an_environment_variable_prints_the_traceback(warm, text, tmp_path):
    env = {"RECURRENCE_TRACEBACK": "1"}
    (ended,) = warm.run(training_job(text, tmp_path, "--decoder-embed-path", "/dev/null", env=env))
    assert "Traceback (most recent call last)" in ended.log
    assert "/dev/null: must be an embedding" in ended.last_line


SIDES = {
    "unequal": (b"one\ntwo\n", b"eins\n", "has 2 lines, .*u.de has 1 line: both sides must have the same number"),
    "empty": (b"", b"", "has 0 lines: must have at least one"),
}


@pytest.mark.parametrize(("source", "target", "message"), SIDES.values(), ids=SIDES)
def test_preprocessing_rejects_sides_that_do_not_match(warm, tmp_path, source, target, message):
    for side, content in (("en", source), ("de", target)):
        (tmp_path / f"u.{side}").write_bytes(content)
    languages = ("--source-lang", "en", "--target-lang", "de", "--trainpref", tmp_path / "u")
    (ended,) = warm.run({"argv": ["fairseq-preprocess", *cli.HOST[:2], *languages, "--destdir", tmp_path / "bin"]})
    assert re.search(f"error: --trainpref: .*{message}", one_line(ended)), ended.last_line
    assert not list(tmp_path.glob("bin/*.bin"))


@pytest.mark.parametrize("flags", [(), ("--buffer-size", "8", "--batch-size", "4")])
def test_no_line_is_lost_in_interactive_translation(warm, text, straight, tmp_path, flags):
    file = tmp_path / "in.txt"
    file.write_bytes(b"one two\n\n" + b"one " * 2000 + b"\nfive\n")
    path = ("--path", straight / "checkpoint_last.pt", "--max-len-b", "5")
    (ended,) = warm.run({"argv": ["fairseq-interactive", text, *cli.HOST, *path, "--input", file, *flags]})
    assert ended.status == 0, ended.log[-2000:]
    found = [line.split("\t") for line in ended.log.splitlines() if line.startswith("H-")]
    assert [number for number, *_ in found] == [f"H-{index}" for index in range(4)]
    assert [bool(words) for *_, words in found] == [True, False, False, True]
    assert "is 2001 tokens long: must be <= 1024: left empty" in ended.log
