"""Print the size, the operations and optionally the speed of an untrained image model, as JSON.

    PYTHONPATH=. python recipes/metrics/cost_image.py ARCH [key=value...] [--throughput BATCH] > scores.json

ARCH is any model of timm or timm_plugin. For one image of the model's input size:
  gmac              multiply-accumulates, in billions (`recurrence.count.macs`)
  gflops            operations by RingFormer's counting rule, in billions
  gflops_published  the same rule on the published code's level signals, whose two low-rank factors are multiplied out
With --throughput, for the forward pass in float32 at inference on this machine's GPU or CPU:
  images_per_s      images per second, median over batches
  speed_over_deit   ratio to the speed of DeiT-Tiny (`recursive_deit_tiny`, each block run once), timed in alternation
"""

import argparse
import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import prod

import timm
import torch
from arguments import parser, print_scores
from torch import Tensor, nn

import timm_plugin  # noqa: F401  (registers its models)
from benchmarks.common import DEVICE, positive
from benchmarks.vision import throughput
from recurrence import count
from recurrence.papers.ringformer import LevelSignal
from timm_plugin.training.options import key_value

ROUNDS = 30


def ringformer_flops(module: nn.Module, *inputs: Tensor) -> Counter[str]:
    """Operations of one call by RingFormer's rule, by operator; the sum is what the paper calls FLOPs.

    To :func:`recurrence.count.macs` the rule adds one for each element of a sum, difference or quotient (of attention,
    the division of the scores by the root of the head width) and 6 for each element of a GELU.

    Source: RingFormer (arXiv:2502.13181), section 4.2, "FLOP Comparison", and the counting of its published code.
    """
    rules: dict[str, Callable] = {f"aten::{name}": _elements(1) for name in ("add", "sub", "div")}
    rules["aten::gelu"] = _elements(6)
    rules[count.ATTENTION] = lambda traced, out: count.attention_products(traced, out) + count.attention_scores(traced)
    return count.operations(module, inputs, rules)


def published_ringformer_flops(module: nn.Module, *inputs: Tensor) -> Counter[str]:
    """As :func:`ringformer_flops`, of the form in which the published code computes level signals.

    That form multiplies the two factors of each signal out to C x C and applies the product to every token, which
    fvcore counts as if it were one token. This gives 19.03 G for RingFormer's vision model of Table 3. The work that
    this form really does is 24.58 G; without multiplying out it is 18.34 G.
    """
    module = copy.deepcopy(module)
    for signal in (child for child in module.modules() if isinstance(child, LevelSignal) and child.rank is not None):
        signal.forward = partial(_multiplied_out, signal)
    return ringformer_flops(module, *inputs)


def _multiplied_out(signal: LevelSignal, x: Tensor) -> Tensor:
    """M x of every target, M multiplied out, target by target: (..., C) -> (..., K * out)."""
    factors = zip(signal.up, signal.down)
    return torch.cat([((up.T @ down) @ x[..., None]).squeeze(-1) for up, down in factors], dim=-1)


def _elements(scale: int) -> Callable:
    return lambda inputs, outputs: scale * prod(count.shape(outputs[0]))


def speed(model: nn.Module, side: int, batch: int) -> dict[str, float]:
    """Images per second for square images, and the median over rounds of the ratio to DeiT-Tiny."""
    deit = timm.create_model("recursive_deit_tiny", loops=1, img_size=side)
    models = {"model": model.to(DEVICE), "deit": deit.to(DEVICE)}
    images_per_second, ratio = throughput(models, ROUNDS, "deit", batch, side)["model"]
    return {"images_per_s": images_per_second, "speed_over_deit": ratio}


def measured(args: argparse.Namespace) -> dict[str, float]:
    """All costs of a model.

    Raises:
        ValueError: there is no such model, it rejects an argument, or its images are not square and of three channels.
    """
    kwargs = dict(args.kwargs)
    if not timm.is_model(args.arch):
        raise ValueError(f"ARCH={args.arch}: must be a registered model")
    if kwargs.get("in_chans", 3) != 3:
        raise ValueError(f"in_chans={kwargs['in_chans']}: must be 3, as images are in RGB")
    try:
        model = timm.create_model(args.arch, **kwargs).eval()
    except (AssertionError, RuntimeError, TypeError) as error:
        raise ValueError(str(error)) from error
    side = kwargs.get("img_size", model.pretrained_cfg["input_size"][-1])
    if not isinstance(side, int):
        raise ValueError(f"img_size={side}: must be one side, as images are square")
    image = torch.zeros(1, 3, side, side)
    costs = {
        "params": count.stored(model),
        "gmac": count.macs(model, image) / 1e9,
        "gflops": ringformer_flops(model, image).total() / 1e9,
        "gflops_published": published_ringformer_flops(model, image).total() / 1e9,
    }
    if args.throughput:
        costs.update(speed(model, side, args.throughput))
    return {name: round(value, 4) for name, value in costs.items()}


def main() -> None:
    command_line = parser(__doc__)
    add = command_line.add_argument
    add("arch", metavar="ARCH", help="a registered model")
    add("kwargs", nargs="*", type=key_value, metavar="key=value")
    add("--throughput", type=positive, metavar="BATCH", help="images per batch; measures the speed")
    print_scores(command_line, measured)


if __name__ == "__main__":
    main()
