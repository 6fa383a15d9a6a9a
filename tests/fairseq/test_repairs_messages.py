"""The error messages of failing commands."""

import re

import pytest
import torch

from fairseq_plugin.repairs.checkpoints import CheckpointError
from fairseq_plugin.repairs.messages import one_line
from tests.support import cli

RANK = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "wrap.py", line 1, in _wrap
    fn(i, *args)
fairseq.SomeError: no
ValueError: --lr 0: must be > 0
"""
SHORT = ("--batch-size", "16", "--max-update", "9")
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


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "option"), [("ringformer_base", "--signal-rank-divisor"), ("transformer", None)])
def test_help_lists_the_options_of_the_architecture(arch, option):
    log = cli.run("fairseq-train", *cli.HOST, "--task", "translation", "--arch", arch, "--help")
    assert "--encoder-embed-dim" in log
    assert "--eval-bleu-args" in log
    assert (option or "--encoder-embed-dim") in log


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_named_when_training_resumes(trained, corpus, tmp_path):
    last = trained.folder / "checkpoint_last.pt"
    log = cli.train(corpus.data, tmp_path, "--restore-file", str(last), "--encoder-embed-dim", "64", *SHORT, fails=True)
    assert re.search(f"{last}: does not fit the model of this command: .*embed", log.splitlines()[-1])
