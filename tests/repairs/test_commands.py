"""fairseq's commands: their log, their help, and defaults."""

import logging
import re
import sys

import pytest

from fairseq_repairs import commands
from tests.support import cli, upstream


class TestLog:
    @pytest.fixture(autouse=True)
    def root(self):
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        yield root
        root.handlers[:], root.level = handlers, level

    @pytest.mark.parametrize(
        ("command", "handlers", "level", "mended"),
        [
            ("/usr/bin/fairseq-preprocess", [logging.NullHandler()], logging.WARNING, True),
            ("/lib/fairseq_cli/eval_lm.py", [logging.NullHandler()], logging.WARNING, True),
            ("/usr/bin/fairseq-generate", [], logging.WARNING, False),  # it configures its own later
            ("/usr/bin/fairseq-train", [logging.NullHandler()], logging.INFO, False),
            ("/usr/bin/jupyter", [logging.NullHandler()], logging.WARNING, False),
        ],
    )
    def test_only_a_silenced_command_is_repaired(self, root, monkeypatch, command, handlers, level, mended):
        monkeypatch.setattr(sys, "argv", [command])
        root.handlers[:] = handlers
        root.setLevel(level)
        commands.restore_cli_logging()
        assert root.level == (logging.INFO if mended else level)
        assert (root.handlers != handlers) == mended


def test_bf16_needs_no_tpu():
    args = upstream.arguments("transformer", "--bf16")
    assert (args.bf16, args.tpu) == (True, False)
    assert upstream.arguments("transformer", "--bf16", "--tpu").tpu is True


@pytest.mark.slow
def test_help_lists_the_options_of_the_architecture_with_its_defaults():
    flags = ("--user-dir", cli.REPAIRS, "--task", "translation", "--arch", "transformer_iwslt_de_en")
    log = cli.run("fairseq-train", *flags, "--help")
    assert "--eval-bleu-args" in log
    assert re.search(r"^  --encoder-ffn-embed-dim .*(\n {9,}.*)*\(default: 1024\)$", log, re.MULTILINE)
