"""Count what image models compute for one image, and time them (RingFormer, Table 3; SReT, Table 4).

    PYTHONPATH=. python recipes/figures/operations.py plain_vit owf_vit uit ringformer_vit --output operations.svg

What is counted, in G for one image:
  MAC               multiply-accumulates, as fvcore counts them, and those of fused attention, which it leaves out
  RingFormer rule   these, and by RingFormer's rule sums, differences, quotients and GELUs
  published form    the same rule on the published code's level signals, which are multiplied out (19.03 of Table 3)
  training          two for each multiply-accumulate of the matrix products, forward and backward
and images a second in evaluation, on the accelerator or the threads of this machine: the models run in turn, the figure
is the median of the rounds. Beside OUTPUT lie the numbers, as CSV.
"""

import copy
from functools import partial

import timm
import torch
from pictures import COLOURS, page, parser, save
from torch import nn

import timm_plugin  # noqa: F401  (registers its models)
from benchmarks.common import DEVICE, ratios
from recurrence.count import flops, macs, published_ringformer_flops, ringformer_flops, stored

COUNTS = ("MAC", "RingFormer rule", "published form", "training")
COLUMNS = ["model", "image side, pixels", "stored parameters", *(f"{name}, G" for name in COUNTS)]


def build(name: str, side: int) -> nn.Module:
    """A model of timm for square images.

    Raises:
        ValueError: if timm has none of that name, or it takes no such images.
    """
    if not timm.is_model(name):
        raise ValueError(f"{name}: must be a registered model")
    return timm.create_model(name, img_size=side).eval()


def counts(model: nn.Module, side: int) -> list[float]:
    """Those of the head of this file, in their order, in G."""
    image = torch.zeros(1, 3, side, side)
    rules = [macs(model, image)]
    rules += [rule(model, image).total() for rule in (ringformer_flops, published_ringformer_flops)]
    nothing = copy.deepcopy(model).to("meta")
    training = flops(lambda: nothing(image.to("meta")).sum().backward())
    return [number / 1e9 for number in (*rules, training)]


def throughput(models: dict[str, nn.Module], side: int, batch: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Images a second of each, and their ratio to the first."""
    images = torch.randn(batch, 3, side, side, device=DEVICE)

    def run(model: nn.Module):
        with torch.inference_mode():
            model(images)

    work = {name: partial(run, model.to(DEVICE)) for name, model in models.items()}
    times = ratios(work, rounds, next(iter(work)))
    return {name: (batch / seconds, 1 / ratio) for name, (seconds, ratio) in times.items()}


def threads() -> str:
    """How many threads the processor runs."""
    count = torch.get_num_threads()
    return f"{count} thread{'s' if count > 1 else ''}"


def draw(table: list[list], batch: int, path) -> None:
    """Operations beside throughput, a group of bars for each model, the first on top."""
    names = [row[0] for row in table]
    figure = page(0.9 + 0.55 * len(names))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for number, name in enumerate(COUNTS[:3]):
        places = [index + 0.27 * (number - 1) for index in range(len(names))]
        bars = left.barh(places, [row[3 + number] for row in table], 0.25, color=COLOURS[number], label=name)
        left.bar_label(bars, fmt="%.2f", padding=2)
    left.margins(x=0.15)
    for axes in (left, right):
        axes.grid(visible=False, axis="y")
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.set(xlabel="operations for an image, G")
    bars = right.barh(range(len(names)), [row[7] for row in table], 0.5, color="grey")
    right.bar_label(bars, fmt="%.3g", padding=2)
    right.margins(x=0.2)
    where = f"{torch.cuda.get_device_name() if DEVICE == 'cuda' else f'CPU, {threads()}'}, batch {batch}"
    right.set(xlabel=f"images a second\n({where})")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save(figure, path, [*COLUMNS, f"images a second ({where})", "ratio to the first"], table)


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__)
    command_line.add_argument("models", nargs="+", metavar="MODEL", help="any of timm or timm_plugin")
    command_line.add_argument("--img-size", type=int, default=224, help="side of the images (default 224)")
    command_line.add_argument("--batch", type=int, default=8, help="images at a time when timed (default 8)")
    command_line.add_argument("--rounds", type=int, default=5, help="timed rounds (default 5)")
    options = command_line.parse_args(arguments)
    try:
        models = {name: build(name, options.img_size) for name in options.models}
    except ValueError as error:
        command_line.error(str(error))
    side = options.img_size
    counted = {name: [side, stored(model), *counts(model, side)] for name, model in models.items()}
    timed = throughput(models, side, options.batch, options.rounds)
    draw([[name, *counted[name], *timed[name]] for name in models], options.batch, options.output)


if __name__ == "__main__":
    main()
