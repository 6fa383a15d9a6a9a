"""Plot the loss of trained image models along filter-normalised random directions (SReT, Figure 9).

    python recipes/figures/landscape.py A=RUN/last.pth.tar B=OTHER/last.pth.tar --output landscape.svg
    python recipes/figures/landscape.py A=RUN/last.pth.tar --plane --output plane.svg

Evaluates the cross entropy on training images, without augmentation, at steps along random directions, or with --plane
in the plane of two. Each filter of a direction has the norm of the model's filter (`recurrence.analysis.landscape`).
All models share the seeds and the images. The numbers are saved next to the picture, as CSV. For lines, the curvature
of the loss at the trained weights is printed for each model, in nats per squared filter norm: the second difference
over the smallest step, as mean and standard deviation over the directions.
"""

from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from checkpoints import ImageRun, device
from pictures import COLOURS, MARKERS, distinct, labelled, page, parser, positive, save
from torch import Tensor

from recurrence.analysis.landscape import filter_normalised, loss_surface


def mean_loss(run: ImageRun, samples: int, batch: int) -> Callable[[], float]:
    """A function that evaluates the model's mean cross entropy, in nats, always on the same training images."""
    place = device()
    batches = [(images.to(place), classes.to(place)) for images, classes in run.images(samples, batch, training=True)]
    run.model.to(place)
    count = sum(len(classes) for _, classes in batches)

    @torch.no_grad()
    def loss() -> float:
        sums = [F.cross_entropy(run.model(images), classes, reduction="sum") for images, classes in batches]
        return float(sum(sums)) / count

    return loss


def surface(checkpoint: Path, steps: Tensor, options) -> Tensor:
    """The losses at the steps along each direction, (directions, steps), or in a plane, (steps, steps)."""
    run = ImageRun(checkpoint, options.data)
    loss = mean_loss(run, options.samples, options.batch)
    found = [filter_normalised(run.model, options.seed + n) for n in range(2 if options.plane else options.directions)]
    if options.plane:
        return loss_surface(run.model, loss, found, steps)
    return torch.stack([loss_surface(run.model, loss, [direction], steps) for direction in found])


def curvature(losses: Tensor, steps: Tensor) -> Tensor:
    """The second difference of the losses at step 0, (directions, steps) -> (directions,)."""
    middle = len(steps) // 2
    return (losses[:, middle - 1] - 2 * losses[:, middle] + losses[:, middle + 1]) / (steps[middle + 1] ** 2)


def draw_lines(models: dict[str, Tensor], steps: Tensor, path: Path) -> None:
    """Draws the lines of each model in its colour."""
    figure = page(3.2)
    axes = figure.subplots()
    rows = []
    for (label, found), colour, marker in zip(models.items(), cycle(COLOURS), cycle(MARKERS)):
        for number, losses in enumerate(found):
            name = label if number == 0 else None
            axes.plot(steps, losses, color=colour, marker=marker, markersize=3, label=name)
            rows += [(label, number + 1, float(step), float(loss)) for step, loss in zip(steps, losses)]
    axes.set(xlabel="step along the direction, in filter norms", ylabel="training loss, nats")
    axes.legend()
    save(figure, path, ["model", "direction", "step", "loss, nats"], rows)


def draw_planes(models: dict[str, Tensor], steps: Tensor, path: Path) -> None:
    """Draws one panel per model on a common colour scale, with contours at equal factors of the loss."""
    low = min(float(losses.min()) for losses in models.values())
    high = max(float(losses.max()) for losses in models.values())
    levels = np.geomspace(max(low, 1e-3), max(high, 2e-3), 13)
    figure = page(2.4)
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for axes, (label, losses) in zip(panels, models.items()):
        filled = axes.contourf(steps, steps, losses.T.clamp(min=levels[0]), levels, norm="log")
        axes.contour(filled, colors="white", linewidths=0.4)
        axes.plot(0, 0, marker="+", color="white")
        axes.set(title=label, xlabel="first direction", aspect="equal", xticks=(steps[0], 0, steps[-1]))
    panels[0].set(ylabel="second direction, filter norms")
    bar = figure.colorbar(filled, ax=list(panels), label="training loss, nats", shrink=0.7)
    bar.set_ticks(levels[::3], labels=[f"{level:.2g}" for level in levels[::3]])
    bar.minorticks_off()
    rows = [
        (label, float(steps[row]), float(steps[column]), float(losses[row, column]))
        for label, losses in models.items()
        for row in range(len(steps))
        for column in range(len(steps))
    ]
    save(figure, path, ["model", "step along the first", "step along the second", "loss, nats"], rows)


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__)
    command_line.add_argument("models", type=labelled, nargs="+", metavar="LABEL=CHECKPOINT")
    command_line.add_argument("--plane", action="store_true", help="two directions, one panel per model")
    command_line.add_argument("--data", help="folder of the images (default: as in training)")
    command_line.add_argument("--samples", type=positive(int), default=256, help="training images (default 256)")
    command_line.add_argument("--batch", type=positive(int), default=64, help="images per batch (default 64)")
    command_line.add_argument(
        "--reach", type=positive(float), default=1.0, help="largest step, in filter norms (default 1)"
    )
    command_line.add_argument("--steps", type=int, default=21, help="steps along each direction, odd (default 21)")
    command_line.add_argument("--directions", type=positive(int), default=1, help="lines per model (default 1)")
    command_line.add_argument("--seed", type=int, default=0, help="seed of the first direction")
    options = command_line.parse_args(arguments)
    if options.steps < 3 or options.steps % 2 == 0:
        command_line.error(f"--steps={options.steps}: must be odd, so that 0 is a step, and >= 3")
    if options.plane and options.directions > 1:
        command_line.error(f"--directions={options.directions}: cannot be combined with --plane, which has two")
    half = options.steps // 2
    # In integers first, so that the middle step is exactly 0: the trained weights.
    steps = torch.arange(-half, half + 1, dtype=torch.float64) * options.reach / half
    try:
        models = {label: surface(checkpoint, steps, options) for label, checkpoint in distinct(options.models).items()}
    except (OSError, RuntimeError, ValueError) as error:
        command_line.error(str(error))
    if options.plane:
        draw_planes(models, steps, options.output)
        return
    draw_lines(models, steps, options.output)
    for label, losses in models.items():
        found = curvature(losses, steps)
        spread = f" +- {float(found.std()):.3g}" if len(found) > 1 else ""
        print(f"{label}: curvature {float(found.mean()):.3g}{spread}")


if __name__ == "__main__":
    main()
