"""Bad input ends a command with one line that names the file or option; good lines beside it are still answered."""

import re
import shutil
import struct
from pathlib import Path

import numpy as np
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


CORPORA = {
    "another order": ("dict.*", lambda old: b"".join(lines(old)[::-1]), "was trained with another"),
    "a short dictionary": ("dict.*", lambda old: b"".join(lines(old)[:2]), "has a symbol 15, but its dictionary has 6"),
    "an empty corpus": ("train.*.bin", lambda old: b"", r"/train.en-de.en.bin: holds no token"),
    "a truncated corpus": ("train.*.de.bin", lambda old: old[:99], r"de.bin: has 99 bytes, .*: it is truncated"),
    "a truncated index": ("train.*.de.idx", lambda old: old[:99], r"train.en-de.de: cannot be read as a corpus"),
    "no counts": ("dict.en.*", lambda old: old.replace(b" ", b"_"), r"/dict.en.txt: Incorrect dictionary format"),
    "no training side": ("train.*.de.*", lambda old: None, "--train-subset train: has no target side"),
    "no validation side": ("valid.*.de.*", lambda old: None, "--valid-subset valid: has no target side"),
}


@pytest.mark.parametrize(("pattern", "edit", "message"), CORPORA.values(), ids=CORPORA)
def test_a_corpus_that_does_not_fit_is_named_before_training(warm, text, straight, tmp_path, pattern, edit, message):
    data = changed(text, tmp_path / "data", pattern, edit)
    flags = ("--restore-file", straight / "checkpoint_last.pt", "--max-epoch", "4")
    (ended,) = warm.run(training_job(data, tmp_path / "run", *flags))
    assert re.search(message, one_line(ended)), ended.last_line
    assert "begin training epoch" not in ended.log


def test_an_environment_variable_prints_the_traceback(warm, text, tmp_path):
    env = {"RECURRENCE_TRACEBACK": "1"}
    (ended,) = warm.run(training_job(text, tmp_path, "--decoder-embed-path", "/dev/null", env=env))
    assert "Traceback (most recent call last)" in ended.log
    assert "/dev/null: must be an embedding" in ended.last_line


SIDES = {
    "unequal": (b"one\ntwo\n", b"eins\n", "has 2 lines, .*u.de has 1 line: both sides must have the same number"),
    "empty": (b"", b"", "has 0 lines: must have at least one"),
    "no text": (b"one\n\xff\n", b"eins\nzwei\n", "u.en: line 2: must be UTF-8: invalid start byte at byte 0"),
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
    file.write_bytes(b"one two\n\nthree \xff four\n" + b"one " * 2000 + b"\nfive\n")
    path = ("--path", straight / "checkpoint_last.pt", "--max-len-b", "5")
    (ended,) = warm.run({"argv": ["fairseq-interactive", text, *cli.HOST, *path, "--input", file, *flags]})
    assert ended.status == 0, ended.log[-2000:]
    found = [line.split("\t") for line in ended.log.splitlines() if line.startswith("H-")]
    assert [number for number, *_ in found] == [f"H-{index}" for index in range(5)]
    assert [bool(words) for *_, words in found] == [True, False, False, False, True]
    assert "line 2: not UTF-8 (invalid start byte at byte 6): left empty" in ended.log
    assert "is 2001 tokens long: must be <= 1024: left empty" in ended.log


def test_a_truncated_wave_file_is_named(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    from fairseq.data.audio.audio_utils import get_features_or_waveform

    path = tmp_path / "speech.wav"
    soundfile.write(path, np.random.default_rng(0).normal(0, 0.1, 8000), 8000)
    complete = path.read_bytes()
    assert len(get_features_or_waveform(str(path), need_waveform=True)) == 8000
    path.write_bytes(complete[: len(complete) // 2])
    with pytest.raises(ValueError, match=rf"^{path}: cannot be read as speech: truncated: has 7,978 of 16,000 bytes"):
        get_features_or_waveform(str(path), need_waveform=True)
    unknown = struct.pack("<I", 0xFFFFFFFF)  # the length in the header of a streamed file
    path.write_bytes(complete[:4] + unknown + complete[8:40] + unknown + complete[44:])
    assert len(get_features_or_waveform(str(path), need_waveform=True)) == 8000
