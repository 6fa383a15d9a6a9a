"""What a run of train_image.py keeps on disk: its last checkpoint, and a line an epoch."""

import argparse
import csv
import hashlib
import zipfile
from pathlib import Path

import torch
from image_options import refuse


def last_checkpoint(args: argparse.Namespace) -> Path | None:
    """What to go on from, which every process must have alike; None for a new run.

    A first checkpoint that a kill has left under its temporary name is given its own, or removed where it is torn.

    Raises:
        OptionError: processes have different files, or checkpoints are there but not the last one.
    """
    if not args.resume:
        return None
    last = Path(args.output) / "last.pth.tar"
    unnamed = last.with_name("tmp.pth.tar")  # as the first save has it until it is written
    if args.rank == 0 and not last.exists() and unnamed.exists():
        unnamed.unlink() if damage(unnamed) else unnamed.replace(last)
    if args.distributed:
        torch.distributed.barrier()
        found = [None] * args.world_size
        digest = hashlib.sha256(last.read_bytes()).hexdigest() if last.exists() else None
        torch.distributed.all_gather_object(found, digest)
        for rank, theirs in enumerate(found):
            if theirs != found[0]:
                refuse("resume", last, f"is not the same on ranks 0 and {rank}: every node must have that of rank 0")
    others = sorted(Path(args.output).glob("*.pth.tar"), key=lambda path: path.stat().st_mtime)
    if others and not last.exists():
        refuse("resume", args.output, f"has no last.pth.tar, but {others[-1].name}, which could take its name")
    return last if last.exists() else None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint as a file; None where nothing is."""
    try:
        with zipfile.ZipFile(path) as archive:
            part = archive.testzip()
    except (EOFError, OSError, zipfile.BadZipFile) as error:
        return f"torn ({error})"
    return part and f"damaged in {part}"


def record(table: Path, epoch: int, line: dict | None = None) -> None:
    """Keep the lines of earlier epochs and add that of this one; the file is replaced as a whole."""
    lines = []
    if table.exists():
        with table.open(newline="") as file:
            lines = [row for row in csv.DictReader(file) if None not in row.values() and int(row["epoch"]) < epoch]
    if line:
        lines.append(line)
    if lines:
        part = table.with_suffix(".tmp")
        with part.open("w", newline="") as file:
            writer = csv.DictWriter(file, lines[-1])
            writer.writeheader()
            writer.writerows(lines)
        part.replace(table)
    elif table.exists():
        table.unlink()


def one_line(error: Exception) -> str:
    """What an error says, or what it said in the loading process that it is from."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1] if "Original Traceback" in str(error) else lines[0]
