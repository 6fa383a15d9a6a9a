"""Plot the loss of trained image models in the plane of two filter-normalised random directions (SReT, Figure 9).

    python recipes/figures/landscape.py A=RUN/last.pth.tar B=OTHER/last.pth.tar --output landscape.svg

Evaluates the cross entropy on training images, without augmentation. All models share the seeds and the images. The
numbers are saved next to the picture, as CSV. The curvature of the loss at the trained weights along the two directions
is printed for each model, in nats per squared filter norm: the second difference over the smallest step, as mean and
standard deviation.

Source: Li et al. (arXiv:1712.09913), section 4, for the directions; SReT (arXiv:2111.05297), Figure 9.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from checkpoints import ImageRun, device
from pictures import distinct, labelled, page, parser, positive, save
from torch import Tensor, nn

Direction = dict[str, Tensor]


def filter_normalised(model: nn.Module, seed: int) -> Direction:
    """A Gaussian direction, by parameter, whose filters are scaled to the norms of the model's filters.

    A filter is a row of a parameter's first dimension. Parameters of one dimension (biases, weights of norms, residual
    coefficients) do not move. The random numbers are drawn on the CPU for one parameter after the other.
    """
    generator = torch.Generator().manual_seed(seed)
    direction = {}
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            drawn = torch.randn(weight.shape, generator=generator).to(weight).flatten(1)
            scale = weight.detach().flatten(1).norm(dim=1, keepdim=True) / drawn.norm(dim=1, keepdim=True)
            direction[name] = (drawn * scale).view_as(weight)
    return direction


@torch.no_grad()
def loss_surface(model: nn.Module, loss: Callable[[], float], directions: Sequence[Direction], steps: Tensor) -> Tensor:
    """The loss at every combination of steps along the directions; the trained weights are restored afterwards.

    Args:
        model: at its trained weights.
        loss: computes the loss of the model.
        directions: see :func:`filter_normalised`.
        steps: amounts along each direction; 1 moves each filter by its own length.

    Returns:
        (steps, steps, ...), a dimension for each direction, float64.
    """
    trained = {name: model.get_parameter(name).clone() for name in directions[0]}
    losses = []
    for amounts in torch.cartesian_prod(*[steps.double()] * len(directions)).view(-1, len(directions)).tolist():
        for name, weight in trained.items():
            moved = model.get_parameter(name).copy_(weight)
            for direction, amount in zip(directions, amounts):
                moved.add_(direction[name], alpha=amount)
        losses.append(loss())
    for name, weight in trained.items():
        model.get_parameter(name).copy_(weight)
    return torch.tensor(losses, dtype=torch.float64).view([len(steps)] * len(directions))


def mean_loss(run: ImageRun, samples: int, batch: int) -> Callable[[], float]:
    """Moves the model to :func:`device`; returns a function that evaluates its mean cross entropy, in nats.

    The images are always the same, of the training set.
    """
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
    """The losses at the steps along both directions, (steps, steps)."""
    run = ImageRun(checkpoint, options.data)
    loss = mean_loss(run, options.samples, options.batch)  # moves the model to where it is evaluated
    directions = [filter_normalised(run.model, seed) for seed in range(2)]
    return loss_surface(run.model, loss, directions, steps)


def curvature(losses: Tensor, steps: Tensor) -> Tensor:
    """The second difference of the losses at the middle along each direction, (steps, steps) -> (2,)."""
    middle = len(steps) // 2
    lines = torch.stack([losses[:, middle], losses[middle]])
    return (lines[:, middle - 1] - 2 * lines[:, middle] + lines[:, middle + 1]) / (steps[middle + 1] ** 2)


def draw(models: dict[str, Tensor], steps: Tensor, path: Path) -> None:
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
        (label, float(steps[row]), float(steps[column]), loss)
        for label, losses in models.items()
        for (row, column), loss in np.ndenumerate(losses)
    ]
    save(figure, path, ["model", "step along the first", "step along the second", "loss, nats"], rows)


def odd(text: str) -> int:
    """Parses the number of steps, of which the middle one is 0."""
    if (number := int(text)) < 3 or number % 2 == 0:
        raise argparse.ArgumentTypeError(f"{text}: must be odd and >= 3")
    return number


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__, "training images", samples=256, batch=64)
    add = command_line.add_argument
    add("models", type=labelled, nargs="+", metavar="LABEL=CHECKPOINT")
    add("--reach", type=positive(float), default=1.0, help="largest step, in filter norms (default 1)")
    add("--steps", type=odd, default=21, help="steps along each direction, odd (default 21)")
    options = command_line.parse_args(arguments)
    half = options.steps // 2
    # In integers first, so that the middle step is exactly 0: the trained weights.
    steps = torch.arange(-half, half + 1, dtype=torch.float64) * options.reach / half
    try:
        models = {label: surface(checkpoint, steps, options) for label, checkpoint in distinct(options.models).items()}
    except (OSError, RuntimeError, ValueError) as error:
        command_line.error(str(error))
    draw(models, steps, options.output)
    for label, losses in models.items():
        found = curvature(losses, steps)
        print(f"{label}: curvature {float(found.mean()):.3g} +- {float(found.std()):.3g}")


if __name__ == "__main__":
    main()
