"""Plot the mean attention distance of each head in each pass of image models, in pixels (RingFormer, Figure 3).

    python recipes/figures/attention_distance.py A=RUN/last.pth.tar B=OTHER/last.pth.tar --output distance.svg

For models trained by train_image.py with one grid of tokens, which excludes SReT. The numbers are saved next to the
picture, as CSV.

Source: Dosovitskiy et al. (arXiv:2010.11929), Figure 7; RingFormer (arXiv:2502.13181), Figure 3.
Differs from RingFormer's published code: attention to the class token is left out and the other weights are normalised
again, so that uniform attention has the grid's mean distance; in that code it counts as distance 0.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from checkpoints import ImageRun
from pictures import COLOURS, distinct, labelled, page, parser, save, whole_numbers
from torch import Tensor

from recurrence.analysis.record import recorded_attention


def patch_distances(grid: Sequence[int], patch: Sequence[float]) -> Tensor:
    """Distances between the centres of all patches, numbered row by row: (N, N), float64, in the unit of `patch`.

    Args:
        grid: rows and columns of patches.
        patch: height and width of a patch.
    """
    centres = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) * side for n, side in zip(grid, patch)))
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")


def mean_attention_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """Mean distance between a patch and those that it attends to, over images and patches, in the unit of `distances`.

    Args:
        weights: (B, H, T, T); tokens before the last N, such as a class token, are left out.
        distances: (N, N).

    Returns:
        (H,), float64.
    """
    weights = weights[..., -len(distances) :, -len(distances) :].double()
    mean_distance = (weights * distances.to(weights)).sum(dim=-1) / weights.sum(dim=-1)
    return mean_distance.mean(dim=(0, 2))


def distances(checkpoint: Path, samples: int, batch: int, data: str | None) -> tuple[list[Tensor], list[float]]:
    """Mean attention distances in pixels, for each pass with attention.

    Returns:
        The distance of each head, (H,), for each pass; and the distance of uniform attention for each pass.

    Raises:
        ValueError: if the model has no loop, no attention, or is a pyramid.
    """
    run, images_seen, sums = ImageRun(checkpoint, data), 0, None
    if hasattr(run.model, "stages"):
        raise ValueError(f"{checkpoint}: must be a model with one grid of tokens, not a pyramid")
    side, grid = run.model.patch_embed.img_size, run.model.patch_embed.grid_size
    pixels = patch_distances(grid, (side[0] / grid[0], side[1] / grid[1]))

    def keep(weights: Tensor) -> Tensor:
        """Sums over the batch: the distance of each head, then the distance of uniform attention."""
        return len(weights) * torch.cat([mean_attention_distance(weights, pixels), pixels.mean()[None]])

    with recorded_attention(run.model, keep) as recorded, torch.no_grad():
        for images, _ in run.images(samples, batch):
            run.model(images)
            passes = [kept for loop in recorded.values() for kept in loop]
            sums = passes if sums is None else [total + part for total, part in zip(sums, passes, strict=True)]
            images_seen += len(images)
    return [total[:-1] / images_seen for total in sums], [float(total[-1]) / images_seen for total in sums]


def draw(models: dict[str, tuple[list[Tensor], list[float]]], path: Path) -> None:
    """Draws one panel per model, four in a row: a point for each head, a line through the means of the passes."""
    rows = -(-len(models) // 4)
    figure = page(0.3 + 2.3 * rows)
    panels = figure.subplots(rows, min(4, len(models)), sharey=True, squeeze=False).flatten()
    for axes in panels[len(models) :]:
        axes.set_visible(False)
    for axes, (label, (passes, uniform)) in zip(panels, models.items()):
        numbers = range(1, len(passes) + 1)
        points = [(number, float(value)) for number, heads in zip(numbers, passes) for value in heads]
        axes.plot(*zip(*points), "o", markersize=3.5, color=COLOURS[0], label="a head")
        axes.plot(numbers, [float(heads.mean()) for heads in passes], color=COLOURS[1], label="mean of the heads")
        axes.plot(numbers, uniform, color="black", linestyle="--", linewidth=1, label="uniform attention")
        axes.set(title=label, xlabel="pass")
        whole_numbers(axes.xaxis)
    for axes in panels[::4]:
        axes.set(ylabel="mean attention distance, pixels")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    lines = [
        (label, index + 1, head + 1, float(value))
        for label, (passes, _) in models.items()
        for index, heads in enumerate(passes)
        for head, value in enumerate(heads)
    ]
    save(figure, path, ["model", "pass", "head", "mean attention distance, pixels"], lines)


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__, "test images", samples=200, batch=32)
    command_line.add_argument("models", type=labelled, nargs="+", metavar="LABEL=CHECKPOINT")
    options = command_line.parse_args(arguments)
    try:
        models = {
            label: distances(checkpoint, options.samples, options.batch, options.data)
            for label, checkpoint in distinct(options.models).items()
        }
    except (OSError, RuntimeError, ValueError) as error:
        command_line.error(str(error))
    draw(models, options.output)


if __name__ == "__main__":
    main()
