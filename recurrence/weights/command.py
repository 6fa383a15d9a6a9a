"""The command unshare of `python -m fairseq_plugin.convert` and `python -m timm_plugin.convert`."""

import argparse
from pathlib import Path

from recurrence.removed import RELAXED_SHARING, reject_command


def build(prog: str, description: str, upstream: str) -> tuple[argparse.ArgumentParser, argparse._SubParsersAction]:
    """The parser of `unshare IN OUT`, and its subparsers, to add more commands.

    Args:
        prog, description: as the help shows them.
        upstream: "fairseq" or "timm", whose models have no loop.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_paths(commands.add_parser("unshare", help=f"a looped model as one of {upstream}'s own, without this plugin"))
    reject_command(commands, "share", RELAXED_SHARING)
    return parser, commands


def add_paths(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """IN and OUT."""
    parser.add_argument("input", type=Path, metavar="IN", help="what to read; it is left as it is")
    parser.add_argument("output", type=Path, metavar="OUT", help="what to write")
    return parser
