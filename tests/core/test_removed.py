"""Options and commands of earlier versions end a program with one line."""

import argparse

import pytest

from recurrence.removed import reject_command, reject_options


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("program")
    parser.add_argument("--number", type=int)
    reject_options(parser, {"old_number": "give --number"})
    commands = parser.add_subparsers(metavar="COMMAND")
    commands.add_parser("stay", help="goes on")
    reject_command(commands, "go", "stay")
    return parser


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--old-number"], "program: error: --old-number: was removed: give --number\n"),
        (["--old-number", "3", "stay"], "program: error: --old-number=3: was removed: give --number\n"),
        (["go"], "program go: error: was removed: stay\n"),
        (["go", "--far", "there", "-v"], "program go: error: was removed: stay\n"),
    ],
)
def test_what_was_removed_is_named_in_one_line(parser, capsys, words, line):
    with pytest.raises(SystemExit, match="^2$"):
        parser.parse_args(words)
    assert capsys.readouterr().err == line


def test_what_was_removed_leaves_no_trace_otherwise(parser):
    assert vars(parser.parse_args(["--number", "3", "stay"])) == {"number": 3}
    assert "old" not in parser.format_help()
    assert "go " not in parser.format_help()
