"""Compare image models with timm's `vit_base_patch16_224` and `deit_tiny_patch16_224` (`make bench`).

    python -m benchmarks.vision [--threads 2] [--rounds 7] [--dtype bfloat16] [--batch 128] [--part forward ...]

Forward passes are at inference; a training step is a forward and a backward pass. For time and memory a ratio below 1
is better, for throughput a ratio above 1.
"""

from functools import partial

import timm
import torch
import torch.nn.functional as F
from torch import nn

import timm_plugin  # noqa: F401  registers our models
from benchmarks.common import DEVICE, WEIGHTS, Rows, backward_pass, parser, peak_memory, positive, ratios, set_up, show

BASE, BASE_BATCHES = "vit_base_patch16_224", (4, 1)
LARGE = (BASE, "ringformer_vit", "uit", "owf_vit", "plain_vit")
TINY, TINY_BATCH = "deit_tiny_patch16_224", 16
SMALL = (TINY, "sret_t", "sret_t_global", "sret_tl")
PARTS = ("forward", "training", "throughput", "compiled", "memory")


def build(name: str) -> nn.Module:
    """A model at its registered size."""
    torch.manual_seed(0)
    return timm.create_model(name).to(**WEIGHTS)


def images(number: int, side: int = 224) -> torch.Tensor:
    """Random images (B, 3, side, side)."""
    return torch.randn(number, 3, side, side, generator=torch.Generator().manual_seed(0)).to(**WEIGHTS)


def inference(model: nn.Module, number: int, side: int = 224):
    """A function that classifies a batch of this many images."""
    x = images(number, side)
    model.eval()

    @torch.inference_mode()
    def run():
        model(x)

    return run


def training_step(model: nn.Module, number: int):
    """A function that runs one forward and backward pass on this many images."""
    x = images(number)
    labels = torch.arange(len(x), device=DEVICE) % model.num_classes
    return backward_pass(model, lambda: F.cross_entropy(model(x), labels))


def throughput(
    models: dict[str, nn.Module], rounds: int, base: str = TINY, batch: int = TINY_BATCH, side: int = 224
) -> Rows:
    """Images per second, and the ratio to the base."""
    times = ratios({name: inference(model, batch, side) for name, model in models.items()}, rounds, base)
    return {name: (batch / seconds, 1 / ratio) for name, (seconds, ratio) in times.items()}


def main() -> None:
    """The command line."""
    arguments = parser(__doc__, rounds=7)
    arguments.add_argument("--part", action="append", choices=PARTS, help="what to measure (default: everything)")
    help = f"images of a training step (default: {BASE_BATCHES[0]}) and of a throughput (default: {TINY_BATCH})"
    arguments.add_argument("--batch", type=positive, help=help)
    options = arguments.parse_args()
    trained, classified = options.batch or BASE_BATCHES[0], options.batch or TINY_BATCH
    step = partial(training_step, number=trained)
    where, parts, rounds = set_up(options, build, step), options.part or PARTS, options.rounds
    print(f"{where}; ratios against timm's {BASE} and {TINY}")
    large = {name: build(name) for name in LARGE} if {"forward", "training"} & set(parts) else {}
    for number in BASE_BATCHES if "forward" in parts else ():
        runs = {name: inference(model, number) for name, model in large.items()}
        show(f"Forward pass, batch {number}", ratios(runs, rounds, BASE), "seconds")
    if "training" in parts:
        steps = {name: step(model) for name, model in large.items()}
        show(f"Training step, batch {trained}", ratios(steps, rounds, BASE), "seconds")
    small = {name: build(name) for name in SMALL}
    if "throughput" in parts:
        show(f"Throughput, batch {classified}", throughput(small, rounds, batch=classified), "images/s")
    if "compiled" in parts:
        compiled = {name: torch.compile(model) for name, model in small.items()}
        rows = throughput(compiled, rounds, batch=classified)
        show(f"Throughput, compiled, batch {classified}", rows, "images/s")
    if "memory" in parts:
        show(f"Peak training memory, batch {trained}", peak_memory("benchmarks.vision", LARGE, BASE), "MiB")


if __name__ == "__main__":
    main()
