"""What `python -m fairseq_plugin.convert` and `python -m timm_plugin.convert` share."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

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
    parser.add_argument("input", type=Path, metavar="IN", help="what to read; it is never changed")
    parser.add_argument("output", type=Path, metavar="OUT", help="what to write")
    return parser


def stored_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors, each counted once however many names it has."""
    return sum({tensor.data_ptr(): tensor.numel() * tensor.itemsize for tensor in tensors}.values())


def sizes(before: int, path: Path, once: bool) -> str:
    """What a conversion says of sizes.

    Args:
        before: bytes of the weights that were read.
        path: the file or folder that was written.
        once: whether it stores a block once that several passes share.
    """
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    after = sum(file.stat().st_size for file in files)
    note = "" if once else "; a block that several passes share is stored once per pass"
    return f"{before:,} bytes of weights became {after:,}{note}"
