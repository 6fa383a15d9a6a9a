"""Averages the parameters of several checkpoints into one.

Usage::

    python -m fairseq_plugin.average --inputs checkpoint4.pt checkpoint5.pt --output average.pt
    python -m fairseq_plugin.average --inputs checkpoints --num-epoch-checkpoints 5 --output average.pt

Replaces ``scripts/average_checkpoints.py`` of fairseq 0.12.2, which is not in its wheel, with the same options.
Everything except the parameters comes from the first file; the optimizer's state is left out.
"""

import argparse
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from torch import Tensor

from fairseq_repairs.checkpoints import load_safely
from recurrence.files import make_folder
from recurrence.order import Order

logger = logging.getLogger("fairseq_plugin.average")

PATTERNS = {"epoch": r"checkpoint(\d+)\.pt", "update": r"checkpoint_\d+_(\d+)\.pt"}


def average_checkpoints(paths: Sequence[str | Path]) -> dict[str, Any]:
    """Returns the state of the first file with the mean of all files' parameters.

    Floating-point tensors are summed in float64 and cast back to the first file's dtype; other tensors are those of the
    first file.

    Args:
        paths: checkpoints of one model.

    Raises:
        ValueError: if the files do not have the same parameters in the same shapes, or their loops different orders.
        CheckpointError: if a file is not an intact fairseq checkpoint, or holds a type that is not allowed.
    """
    state = load_safely(paths[0])
    first = state["model"]
    totals = {key: one.to(torch.float64, copy=True) for key, one in first.items() if one.is_floating_point()}
    for path in paths[1:]:
        other = load_safely(path)["model"]
        _check_same_parameters(paths[0], first, path, other)
        for key, total in totals.items():
            total += other[key]
    for key, total in totals.items():
        first[key].copy_(total / len(paths))  # in place, so that keys which share a tensor share it in the result
    state["last_optimizer_state"] = None
    return state


def _check_same_parameters(first_path: Any, first: dict[str, Tensor], path: Any, other: dict[str, Tensor]) -> None:
    """Raises ValueError unless both files have the same keys, shapes and orders."""
    different = sorted(first.keys() ^ other.keys()) or [key for key in first if first[key].shape != other[key].shape]
    orders = _orders(first)
    different += [f"order of {loop}" for loop, order in _orders(other).items() if orders.get(loop, order) != order]
    if different:
        raise ValueError(f"{path}: {different[0]} differs from that in {first_path}: must be checkpoints of one model")


def _orders(parameters: dict[str, Tensor]) -> dict[str, Order]:
    """The order of each loop by its name, where the file tells it."""
    marks = getattr(parameters, "_metadata", {})
    return {name: mark["order"] for name, mark in marks.items() if "order" in mark}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m fairseq_plugin.average", description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", nargs="+", required=True, metavar="PATH", help="checkpoints, or one folder of them")
    parser.add_argument("--output", required=True, metavar="FILE", help="the checkpoint to write")
    last = parser.add_mutually_exclusive_group()
    for kind in PATTERNS:
        text = f"average a folder's last N checkpoints named by {kind}"
        last.add_argument(f"--num-{kind}-checkpoints", type=int, metavar="N", help=text)
    bound = "with these, ignore checkpoints after epoch (or update) N"
    parser.add_argument("--checkpoint-upper-bound", type=int, metavar="N", help=bound)
    args = parser.parse_args(arguments)
    try:
        paths = _chosen(args)
    except ValueError as error:
        parser.error(f"--inputs {' '.join(args.inputs)}: {error}")
    logger.info("averaging %s", ", ".join(map(str, paths)))
    make_folder(Path(args.output).parent)
    checkpoint_utils.torch_persistent_save(average_checkpoints(paths), args.output)
    logger.info("wrote %s", args.output)


def _chosen(args: argparse.Namespace) -> list[str]:
    """The files to average, the latest of a folder first. Raises ValueError if there are not as many as asked for."""
    for kind, pattern in PATTERNS.items():
        count = getattr(args, f"num_{kind}_checkpoints")
        if count is None:
            continue
        if len(args.inputs) != 1 or not Path(args.inputs[0]).is_dir():
            raise ValueError("must be one folder of checkpoints")
        bound = math.inf if args.checkpoint_upper_bound is None else args.checkpoint_upper_bound
        found = checkpoint_utils.checkpoint_paths(args.inputs[0], pattern, keep_match=True)
        eligible = [path for path, number in found if number <= bound]
        if count < 1:
            raise ValueError(f"--num-{kind}-checkpoints={count}: must be >= 1")
        if count > len(eligible):
            raise ValueError(f"--num-{kind}-checkpoints={count}: there are only {len(eligible)} checkpoints by {kind}")
        return eligible[:count]
    if args.checkpoint_upper_bound is not None:
        raise ValueError("--checkpoint-upper-bound needs --num-epoch-checkpoints or --num-update-checkpoints")
    for path in args.inputs:
        if not Path(path).is_file():
            raise ValueError(f"{path}: not a file; a folder needs --num-epoch-checkpoints or --num-update-checkpoints")
    return args.inputs


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", level=logging.INFO, force=True)
    main()
