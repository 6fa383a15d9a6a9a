"""Files of a run of the image trainer: its last checkpoint, summary.csv (a line per epoch), and errors for torchrun."""

import argparse
import csv
import hashlib
import json
import os
import time
from itertools import chain
from pathlib import Path

import torch

from recurrence.files import atomic_write, damage, read_table, remove, replace, write_text
from timm_plugin.training.options import reject


def last_checkpoint(args: argparse.Namespace) -> Path | None:
    """The checkpoint to resume from, which must be the same on every rank; None for a new run.

    If the run was killed while saving its first checkpoint, the file still has a temporary name. It is renamed if it is
    complete, and removed otherwise.

    Raises:
        OptionError: the ranks have different files, or there are checkpoints but no last.pth.tar.
    """
    if not args.resume:
        return None
    last = Path(args.output) / "last.pth.tar"
    unnamed = last.with_name("tmp.pth.tar")  # where timm writes the first checkpoint
    if args.rank == 0 and not last.exists() and unnamed.exists():
        remove(unnamed) if damage(unnamed) else replace(unnamed, last)
    if args.distributed:
        torch.distributed.barrier()
        digests = [None] * args.world_size
        digest = hashlib.sha256(last.read_bytes()).hexdigest() if last.exists() else None
        torch.distributed.all_gather_object(digests, digest)
        for rank, other in enumerate(digests):
            if other != digests[0]:
                reject("resume", last, f"is not the same on ranks 0 and {rank}: every node must have rank 0's file")
    others = sorted(Path(args.output).glob("*.pth.tar"), key=lambda path: path.stat().st_mtime)
    if others and not last.exists():
        reject("resume", args.output, f"has no last.pth.tar, but {others[-1].name}, which could be renamed to it")
    return last if last.exists() else None


def record(table: Path, epoch: int, line: dict | None = None) -> None:
    """Replaces the table atomically: keeps the lines of earlier epochs and appends this epoch's line, if given.

    Raises:
        OptionError: the table is damaged.
    """
    lines = []
    if table.exists():
        try:
            lines = [row for row in read_table(table) if None not in row.values() and int(row["epoch"]) < epoch]
        except (KeyError, TypeError, ValueError) as error:
            reject("output", table, f"has no epochs ({error!r}); remove it: the run can be resumed without it")
    if line:
        lines.append(line)
    if lines:
        with atomic_write(table, newline="") as file:
            columns = dict.fromkeys(chain(lines[-1], *lines))  # an older version may have others
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(lines)
    else:
        remove(table)


def one_line(error: Exception) -> str:
    """The message of an error in one line; for an error in a loader process, the original message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1] if "Original Traceback" in str(error) else lines[0]


def report_to_torchrun(line: str) -> None:
    """Writes the error message to torchrun's error file; otherwise its report gives no cause of the failure."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        message = {"message": line, "extraInfo": {"timestamp": str(int(time.time()))}}
        write_text(path, json.dumps({"message": message}))
