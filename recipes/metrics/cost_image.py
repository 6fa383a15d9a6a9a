"""Print the size, the operations and optionally the speed of an untrained image model, as JSON.

    python cost_image.py ARCH [key=value...] [--throughput BATCH] > scores.json

ARCH is any model of timm or timm_plugin. For one image of the model's input size:
  gmac              multiply-accumulates, in billions (`recurrence.count.macs`)
  gflops            operations by RingFormer's counting rule, in billions
  gflops_published  the same rule on the published code's level signals, whose two low-rank factors are multiplied out
With --throughput, for the forward pass in float32 at inference on this machine's GPU or CPU:
  images_per_s      images per second, median over batches
  speed_over_deit   ratio to the speed of DeiT-Tiny (`recursive_deit_tiny`, each block run once), timed in alternation
"""

import argparse
import json

import timm
import torch
from timm.utils import ParseKwargs
from torch import nn

import timm_plugin  # noqa: F401  (registers its models)
from benchmarks.common import DEVICE, positive
from benchmarks.vision import throughput
from recurrence import count

ROUNDS = 30


def speed(model: nn.Module, side: int, batch: int) -> dict[str, float]:
    """Images per second for square images, and the median over rounds of the ratio to DeiT-Tiny."""
    deit = timm.create_model("recursive_deit_tiny", loops=1, img_size=side)
    models = {"model": model.to(DEVICE), "deit": deit.to(DEVICE)}
    images_per_second, ratio = throughput(models, ROUNDS, "deit", batch, side)["model"]
    return {"images_per_s": images_per_second, "speed_over_deit": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", metavar="ARCH", help="a registered model")
    parser.add_argument("kwargs", nargs="*", action=ParseKwargs, default={}, metavar="key=value")
    parser.add_argument("--throughput", type=positive, metavar="BATCH", help="images per batch; measures the speed")
    args = parser.parse_args()
    if not timm.is_model(args.arch):
        parser.error(f"ARCH={args.arch}: must be a registered model")
    try:
        model = timm.create_model(args.arch, **args.kwargs).eval()
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        parser.error(str(error))
    side = args.kwargs.get("img_size", model.pretrained_cfg["input_size"][-1])
    image = torch.zeros(1, 3, side, side)
    costs = {
        "params": count.stored(model),
        "gmac": count.macs(model, image) / 1e9,
        "gflops": count.ringformer_flops(model, image).total() / 1e9,
        "gflops_published": count.published_ringformer_flops(model, image).total() / 1e9,
    }
    if args.throughput:
        costs.update(speed(model, side, args.throughput))
    print(json.dumps({name: round(value, 4) for name, value in costs.items()}, indent=2))


if __name__ == "__main__":
    main()
