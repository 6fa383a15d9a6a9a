"""Averages the parameters of several checkpoints into one.

Usage::

    python -m fairseq_plugin.average --inputs checkpoint4.pt checkpoint5.pt --output average.pt
    python -m fairseq_plugin.average --inputs checkpoints --num-epoch-checkpoints 5 --output average.pt

Replaces fairseq's ``scripts/average_checkpoints.py``, which is not in its wheel, with the same options. Everything
except the parameters comes from the first file; the optimizer's state and marks of safe depths are left out.
"""

import argparse
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from torch import Tensor

from fairseq_plugin.repairs.checkpoints import load_safely
from recurrence.safe_depth import unmark_safe

logger = logging.getLogger("fairseq_plugin.average")

EPOCH_FILE = re.compile(r"checkpoint(\d+)\.pt")
UPDATE_FILE = re.compile(r"checkpoint_\d+_(\d+)\.pt")


def average_checkpoints(paths: Sequence[str | Path]) -> dict[str, Any]:
    """Returns the state of the first file with the mean of all files' parameters.

    Floating-point tensors are summed in float64 and cast back to the first file's dtype; other tensors are those of the
    first file. Keys that share a tensor in the first file share one in the result, so it is stored once.

    Args:
        paths: checkpoints of one model.

    Raises:
        ValueError: if there is no path, or the files do not have the same parameters in the same shapes.
        CheckpointError: if a file is not an intact fairseq checkpoint, or holds a type that is not allowed.
    """
    if not paths:
        raise ValueError("inputs=[]: must name at least one checkpoint")
    state = load_safely(paths[0])
    first = state["model"]
    unmark_safe(first)
    owners = _owners(first)
    totals = {key: first[key].double() for key in set(owners.values()) if first[key].is_floating_point()}
    for path in paths[1:]:
        other = load_safely(path)["model"]
        unmark_safe(other)
        _check_same_parameters(paths[0], first, path, other)
        for key, total in totals.items():
            total += other[key]
    means = {key: (total / len(paths)).to(first[key].dtype) for key, total in totals.items()}
    state["model"] = type(first)((key, means.get(owners[key], first[key])) for key in first)
    if hasattr(first, "_metadata"):  # contains the order of the passes
        state["model"]._metadata = first._metadata
    state["last_optimizer_state"] = None
    return state


def last_checkpoints(folder: str | Path, pattern: re.Pattern, count: int, upper_bound: int | None = None) -> list[Path]:
    """Returns the ``count`` latest checkpoints of a folder, the latest first.

    Args:
        folder: the folder.
        pattern: ``EPOCH_FILE`` (numbered by epoch) or ``UPDATE_FILE`` (numbered by update).
        count: how many.
        upper_bound: ignore checkpoints with a higher number.

    Raises:
        ValueError: if there are not that many.
    """
    numbered = ((pattern.fullmatch(path.name), path) for path in Path(folder).iterdir())
    found = {int(match[1]): path for match, path in numbered if match}
    eligible = [number for number in sorted(found, reverse=True) if upper_bound is None or number <= upper_bound]
    if not 1 <= count <= len(eligible):
        bound = "" if upper_bound is None else f" up to number {upper_bound}"
        kind = "epoch" if pattern is EPOCH_FILE else "update"
        rule = f"must be >= 1 and <= {len(eligible)}, the number of such checkpoints{bound} in {folder}"
        raise ValueError(f"--num-{kind}-checkpoints={count}: {rule}")
    return [found[number] for number in eligible[:count]]


def _owners(tensors: dict[str, Tensor]) -> dict[str, str]:
    """Maps each key to the first key whose tensor has the same elements of the same storage."""
    first_key: dict[tuple, str] = {}
    owners = {}
    for key, tensor in tensors.items():
        view: tuple = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if not tensor.numel():
            view = (key,)  # empty tensors share no elements
        owners[key] = first_key.setdefault(view, key)
    return owners


def _check_same_parameters(first_path: Any, first: dict[str, Tensor], path: Any, other: dict[str, Tensor]) -> None:
    """Raises ValueError unless both files have the same keys and shapes."""
    different = sorted(first.keys() ^ other.keys()) or [key for key in first if first[key].shape != other[key].shape]
    if different:
        raise ValueError(f"{path}: {different[0]} differs from that in {first_path}: must be checkpoints of one model")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ``--help`` describes it."""
    parser = argparse.ArgumentParser(prog="python -m fairseq_plugin.average", description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", nargs="+", required=True, metavar="PATH", help="checkpoints, or one folder of them")
    parser.add_argument("--output", required=True, metavar="FILE", help="the checkpoint to write")
    last = parser.add_mutually_exclusive_group()
    last.add_argument(
        "--num-epoch-checkpoints", type=int, metavar="N", help="average the checkpoints of a folder's last N epochs"
    )
    last.add_argument(
        "--num-update-checkpoints", type=int, metavar="N", help="average a folder's last N checkpoints named by update"
    )
    parser.add_argument(
        "--checkpoint-upper-bound", type=int, metavar="N", help="ignore checkpoints after epoch (or update) N"
    )
    args = parser.parse_args(arguments)
    try:
        paths = _chosen(args)
    except ValueError as error:
        parser.error(str(error))
    logger.info("averaging %s", ", ".join(map(str, paths)))
    checkpoint_utils.torch_persistent_save(average_checkpoints(paths), args.output)
    logger.info("wrote %s", args.output)


def _chosen(args: argparse.Namespace) -> list[Path]:
    """Returns the files to average. Raises ValueError if the options do not fit together."""
    count = args.num_epoch_checkpoints if args.num_epoch_checkpoints is not None else args.num_update_checkpoints
    if count is None:
        if args.checkpoint_upper_bound is not None:
            raise ValueError("--checkpoint-upper-bound: needs --num-epoch-checkpoints or --num-update-checkpoints")
        paths = [Path(path) for path in args.inputs]
        missing = next((path for path in paths if not path.exists()), None)
        if missing is not None:
            raise ValueError(f"--inputs {missing}: no such file")
        folder = next(filter(Path.is_dir, paths), None)
        if folder is not None:
            raise ValueError(f"--inputs {folder}: a folder needs --num-epoch-checkpoints or --num-update-checkpoints")
        return paths
    if len(args.inputs) != 1 or not Path(args.inputs[0]).is_dir():
        raise ValueError(f"--inputs {' '.join(args.inputs)}: must be one folder of checkpoints")
    pattern = EPOCH_FILE if args.num_epoch_checkpoints is not None else UPDATE_FILE
    return last_checkpoints(args.inputs[0], pattern, count, args.checkpoint_upper_bound)


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", level=logging.INFO, force=True)
    main()
