"""Bad input ends a command with one line that names the file or option."""

import re

import pytest

from tests.support import cli, warm

pytestmark = pytest.mark.slow


def test_an_environment_variable_prints_the_traceback(corpus, tmp_path):
    env = {"RECURRENCE_TRACEBACK": "1"}
    (ended,) = warm.run(warm.training_job(corpus, tmp_path, "--decoder-embed-path", "/dev/null", env=env))
    assert "Traceback (most recent call last)" in ended.log
    assert "/dev/null: must be an embedding" in ended.last_line


SIDES = {
    "unequal": (b"one\ntwo\n", b"eins\n", "has 2 lines, .*u.de has 1 line: both sides must have the same number"),
    "empty": (b"", b"", "has 0 lines: must have at least one"),
}


@pytest.mark.parametrize(("source", "target", "message"), SIDES.values(), ids=SIDES)
def test_preprocessing_rejects_sides_that_do_not_match(tmp_path, source, target, message):
    for side, content in (("en", source), ("de", target)):
        (tmp_path / f"u.{side}").write_bytes(content)
    languages = ("--source-lang", "en", "--target-lang", "de", "--trainpref", tmp_path / "u")
    (ended,) = warm.reject({"argv": ["fairseq-preprocess", *cli.HOST[:2], *languages, "--destdir", tmp_path / "bin"]})
    assert re.search(f"error: --trainpref: .*{message}", ended.last_line), ended.last_line
    assert not list(tmp_path.glob("bin/*.bin"))
