"""Print what an image model stores, computes and how fast it is, without training it, as JSON.

    python cost_image.py ARCH [key=value...] [--throughput BATCH] > scores.json

ARCH is any model of timm or timm_plugin. For one image of its size: gmac, billions of multiply-accumulates
(`recurrence.count.macs`); gflops, billions of operations by RingFormer's rule; gflops_published, by that rule on the
published form, the two factors of each level signal multiplied out. images_per_s is that of the forward pass in float32
at inference on the device at hand, the median of batches, and speed_over_deit its ratio to that of DeiT-Tiny
(`recursive_deit_tiny`, each block once), measured in turn.
"""

import argparse
import json
import time
from statistics import median

import timm
import torch
from timm.utils import ParseKwargs
from torch import nn

import timm_plugin  # noqa: F401  (registers its models)
from recurrence import count


@torch.inference_mode()
def batch_seconds(models: list[nn.Module], side: int, batch: int, rounds: int = 30) -> list[list[float]]:
    """Times of each model's batches, in rounds in which every model takes its turn, after a round to warm up."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images, times = torch.randn(batch, 3, side, side, device=device), [[] for _ in models]
    models = [model.to(device) for model in models]
    for _ in range(1 + rounds):
        for model, found in zip(models, times):
            start = time.perf_counter()
            model(images)
            if device.type == "cuda":
                torch.cuda.synchronize()
            found.append(time.perf_counter() - start)
    return [found[1:] for found in times]


def speed(model: nn.Module, side: int, batch: int) -> dict[str, float]:
    """Images a second of a model for square images, and the median over rounds of the ratio to DeiT-Tiny's."""
    other = timm.create_model("recursive_deit_tiny", loops=1, img_size=side).eval()
    own, others = batch_seconds([model, other], side, batch)
    return {"images_per_s": batch / median(own), "speed_over_deit": median(b / a for a, b in zip(own, others))}


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("arch", metavar="ARCH", help="a registered name")
    found.add_argument("kwargs", nargs="*", action=ParseKwargs, default={}, metavar="key=value")
    found.add_argument("--throughput", type=int, metavar="BATCH", help="images a batch (default: not measured)")
    return found


def main() -> None:
    command_line = parser()
    arguments = command_line.parse_args()
    if not timm.is_model(arguments.arch):
        command_line.error(f"ARCH={arguments.arch}: must be a registered model")
    model = timm.create_model(arguments.arch, **arguments.kwargs).eval()
    side = arguments.kwargs.get("img_size", model.pretrained_cfg["input_size"][-1])
    image = torch.zeros(1, 3, side, side)
    found = {"params": count.stored(model), "gmac": count.macs(model, image) / 1e9}
    found["gflops"] = count.ringformer_flops(model, image).total() / 1e9
    found["gflops_published"] = count.published_ringformer_flops(model, image).total() / 1e9
    if arguments.throughput:
        found |= speed(model, side, arguments.throughput)
    print(json.dumps({name: round(value, 4) for name, value in found.items()}, indent=2))


if __name__ == "__main__":
    main()
