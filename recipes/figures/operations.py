"""Plot the operations per image and the throughput of image models (RingFormer, section 4.2; SReT, Table 4).

    PYTHONPATH=. python recipes/figures/operations.py plain_vit owf_vit uit ringformer_vit --output operations.svg

Operations are counted in billions (G) for one image:
  MAC               multiply-accumulates as fvcore counts them, plus those of fused attention, which it omits
  RingFormer rule   also additions, subtractions, divisions and GELUs, by RingFormer's counting rule
  published form    the same rule on the published code's level signals, which are multiplied out (19.03 in section 4.2)
  training          two per multiply-accumulate of the matrix products, forward and backward
Throughput is images per second at inference on this machine's GPU or CPU threads: the models alternate, and the median
over the rounds is reported. The numbers are saved next to the picture, as CSV.
"""

import copy

import timm
import torch
from pictures import COLOURS, page, parser, positive, save
from torch import nn

import timm_plugin  # noqa: F401  (registers its models)
from benchmarks.common import DEVICE
from benchmarks.vision import throughput
from recurrence.count import flops, macs, published_ringformer_flops, ringformer_flops, stored

COUNTS = ("MAC", "RingFormer rule", "published form", "training")
COLUMNS = ["model", "image side, pixels", "stored parameters", *(f"{name}, G" for name in COUNTS)]


def build(name: str, side: int) -> nn.Module:
    """A registered model for square images.

    Raises:
        ValueError: if the name is not registered, or the model rejects the image size.
    """
    if not timm.is_model(name):
        raise ValueError(f"{name}: must be a registered model")
    sized = {"img_size": side} if timm.get_pretrained_cfg(name).fixed_input_size else {}
    return timm.create_model(name, **sized).eval()


def counts(model: nn.Module, side: int) -> list[float]:
    """The operations for one image in the order of `COUNTS`, in billions."""
    image = torch.zeros(1, 3, side, side)
    without_weights = copy.deepcopy(model).to("meta")
    operations = (
        macs(model, image),
        ringformer_flops(model, image).total(),
        published_ringformer_flops(model, image).total(),
        flops(lambda: without_weights(image.to("meta")).sum().backward()),
    )
    return [number / 1e9 for number in operations]


def threads() -> str:
    """The number of CPU threads in use, in words."""
    count = torch.get_num_threads()
    return f"{count} thread{'s' if count > 1 else ''}"


def draw(table: list[list], batch: int, path) -> None:
    """Draws operations on the left and throughput on the right, with a group of bars per model, the first on top."""
    names = [row[0] for row in table]
    figure = page(0.9 + 0.55 * len(names))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for number, name in enumerate(COUNTS[:3]):
        heights = [index + 0.27 * (number - 1) for index in range(len(names))]
        bars = left.barh(heights, [row[3 + number] for row in table], 0.25, color=COLOURS[number], label=name)
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
    machine = f"{torch.cuda.get_device_name() if DEVICE == 'cuda' else f'CPU, {threads()}'}, batch {batch}"
    right.set(xlabel=f"images a second\n({machine})")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save(figure, path, [*COLUMNS, f"images a second ({machine})", "ratio to the first"], table)


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__)
    command_line.add_argument("models", nargs="+", metavar="MODEL", help="any model of timm or timm_plugin")
    command_line.add_argument("--img-size", type=positive(int), default=224, help="side of the images (default 224)")
    command_line.add_argument("--batch", type=positive(int), default=8, help="images per batch when timed (default 8)")
    command_line.add_argument("--rounds", type=positive(int), default=5, help="timed rounds (default 5)")
    options = command_line.parse_args(arguments)
    try:
        models = {name: build(name, options.img_size) for name in options.models}
    except ValueError as error:
        command_line.error(str(error))
    side = options.img_size
    counted = {name: [side, stored(model), *counts(model, side)] for name, model in models.items()}
    on_device = {name: model.to(DEVICE) for name, model in models.items()}
    timed = throughput(on_device, options.rounds, options.models[0], options.batch, side)
    draw([[name, *counted[name], *timed[name]] for name in models], options.batch, options.output)


if __name__ == "__main__":
    main()
