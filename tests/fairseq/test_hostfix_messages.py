"""The error messages of failing commands."""

import pytest
import torch

from fairseq_plugin.hostfix.checkpoints import CheckpointError
from fairseq_plugin.hostfix.messages import one_line
from tests.support import cli

RANK = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "wrap.py", line 1, in _wrap
    fn(i, *args)
fairseq.SomeError: no
ValueError: --lr 0: must be > 0
"""
LINES = {
    "loops=0: must be >= 1": ValueError("loops=0: must be >= 1"),
    "[Errno 2] No such file or directory: 'x'": FileNotFoundError(2, "No such file or directory", "x"),
    "KeyError: 'x'": KeyError("x"),
    "x.pt: empty": CheckpointError("x.pt: empty"),
    "AssertionError": AssertionError(),
    "RuntimeError: two lines": RuntimeError("two\n\tlines"),
    "--lr 0: must be > 0": torch.multiprocessing.ProcessRaisedException(RANK, 1, 1),
}


@pytest.mark.parametrize(("text", "error"), LINES.items())
def test_an_error_is_one_line(text, error):
    assert one_line(error) == text


def test_a_long_error_is_cut():
    assert one_line(ValueError("x" * 10_000)) == "x" * 600 + " ..."


COMMANDS = {"average": ["--inputs", "{file}", "--output", "{file}.out"], "convert": ["unshare", "{file}", "{file}.out"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_our_own_commands_fail_with_one_line_too(name, tmp_path):
    file = tmp_path / "truncated.pt"
    file.write_bytes(b"PK\x03\x04")
    words = [word.format(file=file) for word in COMMANDS[name]]
    log = cli.python("-W", "ignore", "-m", f"fairseq_plugin.{name}", *words, fails=True)
    assert f"error: {file}: not an intact checkpoint: truncated after 4 bytes" in log.splitlines()[-1]
    assert "Traceback" not in log
