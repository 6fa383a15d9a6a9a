"""The depth curve of a checkpoint: accuracy, time and agreement with the full depth, for each number of passes.

Usage::

    python -m timm_plugin.depth IMAGES --checkpoint model_best.pth.tar --output depth.svg
    python -m timm_plugin.depth IMAGES --checkpoint uit.pth --model uit --write

IMAGES is a folder of classes or of splits, as for timm. The depth of a pyramid is how often the blocks of all stages
run. `--write` stores in the checkpoint the range of depths whose accuracy is at most `--tolerance` worse than at full
depth.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from timm.data import create_dataset, create_loader, resolve_data_config
from timm.utils import ParseKwargs
from torch import Tensor, nn

from recurrence.analysis import depths as curve
from recurrence.loop import Loop
from timm_plugin.convert import load


def assignments(loops: dict[str, Loop]) -> list[curve.Tried]:
    """The depths to try, by name; the last one is the full depth.

    Raises:
        ValueError: if no block runs again, so that there is no other depth.
    """
    units = {name: 1 if len(loops) == 1 else len(loop.blocks) for name, loop in loops.items()}
    possible = set.intersection(*(set(curve.depths(loop, units[name])) for name, loop in loops.items()))
    if len(possible) < 2:
        orders = ", ".join(" ".join(map(str, loop.order)) for loop in loops.values())
        raise ValueError(f"the order {orders}: a checkpoint runs at other depths where its blocks run again in turn")
    return [(str(n), {name: n * unit for name, unit in units.items()}) for n in sorted(possible)]


@torch.no_grad()
def accuracy(model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> curve.Found:
    """Top-1 accuracy in percent."""
    seconds, found = 0.0, []
    for images, _ in batches:
        start = time.perf_counter()
        found += model(images).argmax(-1).tolist()
        seconds += time.perf_counter() - start
    right = sum(a == b for a, b in zip(found, torch.cat([labels for _, labels in batches]).tolist()))
    return 100 * right / len(found), seconds / len(found), found


def note(path: Path, ranges: dict[str, tuple[int, int]]) -> None:
    """Writes the safe range of depths of each loop into a checkpoint."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    weights = state.get("state_dict", state)
    for name, ends in ranges.items():
        weights[f"{name}.safe"] = torch.tensor(ends, dtype=torch.float)
    torch.save(state, path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ``--help`` describes it."""
    parser = argparse.ArgumentParser(prog="python -m timm_plugin.depth", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("images", type=Path, metavar="IMAGES", help="a folder of one folder of images a class, or of splits of them")
    add("--checkpoint", type=Path, required=True, metavar="FILE", help="of timm's trainer, or the weights alone")
    add("--model", metavar="NAME", help="the model, where the checkpoint does not name it")
    add("--model-kwargs", nargs="*", default={}, action=ParseKwargs, metavar="K=V", help="its options")
    add("--split", default="validation", help="which split (default: validation)")
    add("--batch-size", type=int, default=64, metavar="N", help="images at a time (default: 64)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where to run")
    curve.add_options(parser)
    try:
        run(parser.parse_args(arguments))
    except (OSError, ValueError) as error:
        parser.error(str(error))


def run(args: argparse.Namespace) -> None:
    """What the command line asks for.

    Raises:
        ValueError: naming what cannot be.
    """
    if args.write and (args.checkpoint.is_dir() or args.checkpoint.suffix == ".safetensors"):
        raise ValueError(f"--write: {args.checkpoint} must be a file that torch.save has written")
    model = load(args.checkpoint, args.model, **args.model_kwargs).to(args.device)
    loops = curve.loops_of(model)
    tried = assignments(loops)
    size = (model.in_chans, *model.patch_embed.img_size)
    config = resolve_data_config({"input_size": size}, model=model)
    dataset = create_dataset("", str(args.images), split=args.split)
    loader = create_loader(
        *(dataset, size, args.batch_size),
        use_prefetcher=False,
        num_workers=0,
        device=torch.device(args.device),
        **{name: config[name] for name in ("interpolation", "mean", "std", "crop_pct")},
    )
    batches = [(images.to(args.device), labels) for images, labels in loader]
    points = curve.measure(loops, tried, lambda: accuracy(model, batches))
    print(curve.table(points, "top-1"))
    ranges = curve.safe(tried, points, args.tolerance, higher=True)
    for name, (smallest, largest) in ranges.items():
        print(f"{name}: safe from {smallest} to {largest} passes")
    if args.output is not None:
        curve.save(points, "top-1", args.output)
    if args.write:
        note(args.checkpoint, ranges)


if __name__ == "__main__":
    main()
