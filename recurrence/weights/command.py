"""The commands unshare and share of `python -m fairseq_plugin.convert` and `python -m timm_plugin.convert`."""

import argparse
from pathlib import Path

from recurrence.order import STRATEGIES


def build(prog: str, description: str, upstream: str) -> tuple[argparse.ArgumentParser, argparse._SubParsersAction]:
    """The parser of `unshare IN OUT` and `share IN OUT --unique-layers M`, and its subparsers, to add more commands.

    Args:
        prog, description: as the help shows them.
        upstream: "fairseq" or "timm", whose models have no loop.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description)
    commands = parser.add_subparsers(dest="command", required=True)
    add_paths(commands.add_parser("unshare", help=f"a looped model as one of {upstream}'s own, without this plugin"))
    share = add_paths(commands.add_parser("share", help=f"{upstream}'s transformer as a looped model of this plugin"))
    add = share.add_argument
    add("--unique-layers", type=int, required=True, metavar="M", help="stored blocks of each stack, 1 <= M <= layers")
    add("--strategy", choices=sorted(STRATEGIES), default="cycle", help="which layers are tied (default: %(default)s)")
    add(
        "--rank",
        type=int,
        metavar="R",
        help="rank of the term that each pass adds to every projection; at the model's width the result is exact; "
        "without it passes keep nothing of their own",
    )
    return parser, commands


def add_paths(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """IN and OUT."""
    parser.add_argument("input", type=Path, metavar="IN", help="what to read; it is left as it is")
    parser.add_argument("output", type=Path, metavar="OUT", help="what to write")
    return parser
