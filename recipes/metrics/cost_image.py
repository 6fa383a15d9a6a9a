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
from functools import partial

import timm
import torch
from timm.utils import ParseKwargs
from torch import nn

import timm_plugin  # noqa: F401  (registers its models)
from benchmarks.common import DEVICE, ratios
from recurrence import count


def speed(model: nn.Module, side: int, batch: int, rounds: int = 30) -> dict[str, float]:
    """Images a second of a model for square images, and the median over rounds of the ratio to DeiT-Tiny's."""
    images = torch.randn(batch, 3, side, side, device=DEVICE)
    other = timm.create_model("recursive_deit_tiny", loops=1, img_size=side).eval()

    @torch.inference_mode()
    def run(one: nn.Module) -> None:
        one(images)

    models = {"this": model.to(DEVICE), "other": other.to(DEVICE)}
    times = ratios({name: partial(run, one) for name, one in models.items()}, rounds, "other")
    seconds, ratio = times["this"]
    return {"images_per_s": batch / seconds, "speed_over_deit": 1 / ratio}


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
