"""Draw the response maps of an image model in each stage and pass, for a few test images (SReT, Figure 10).

    python recipes/figures/responses.py RUN/last.pth.tar --output responses.svg

The response of a position is the root mean square over its channels. Each map, labelled STAGE.PASS, has its own colour
scale from its weakest (dark) to its strongest position (light). The responses are saved next to the picture, as CSV.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from checkpoints import ImageRun
from pictures import WIDTH, page, parser, save
from torch import Tensor
from torchvision.utils import make_grid

from recurrence.analysis.record import recorded_states

COLUMNS = 9  # maps side by side on a page


def response_map(state: Tensor, grid: Sequence[int]) -> Tensor:
    """The root mean square over the channels of each token: (B, T, C) -> (B, rows, columns), in the state's units.

    Tokens before those of the grid, such as a class token, are left out.
    """
    rows, columns = grid
    places = state[:, state.size(1) - rows * columns :]
    lengths = torch.linalg.vector_norm(places, dim=-1)  # unlike the squares, it does not overflow in half precision
    return (lengths / places.size(-1) ** 0.5).unflatten(1, (rows, columns))


def responses(run: ImageRun, images: Tensor) -> list[list[Tensor]]:
    """The maps of each pass of each stage, (B, rows, columns).

    Raises:
        ValueError: if the model has no loop.
    """
    with recorded_states(run.model) as states, torch.no_grad():
        run.model(images)
    model = run.model
    grids = [stage.grid for stage in model.stages] if hasattr(model, "stages") else [model.patch_embed.grid_size]
    return [[response_map(state, grid) for state in passes] for passes, grid in zip(states.values(), grids)]


def draw(images: Tensor, stages: Sequence[Sequence[Tensor]], path: Path) -> None:
    """Draws each image followed by its maps in the order of the passes, up to `COLUMNS` in a row."""
    names = ["image"] + [f"{1 + stage}.{1 + run}" for stage, passes in enumerate(stages) for run in range(len(passes))]
    columns = min(COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure = page(len(images) * rows * (WIDTH / COLUMNS + 0.2))
    panels = figure.subplots(len(images) * rows, columns, squeeze=False).reshape(len(images), -1)
    for number, (image, row) in enumerate(zip(images, panels)):
        shown = make_grid(image, normalize=True).permute(1, 2, 0)  # between 0 and 1
        cells = [shown, *(maps[number] for passes in stages for maps in passes)]
        for axes, name, cell in zip(row, names, cells):
            axes.imshow(cell)
            axes.set_title(name, fontsize=8, pad=2)
        for axes in row:
            axes.set_axis_off()
    table = (
        (number + 1, index + 1, run + 1, row + 1, column + 1, value)
        for number in range(len(images))
        for index, passes in enumerate(stages)
        for run, maps in enumerate(passes)
        for (row, column), value in np.ndenumerate(maps[number])
    )
    save(figure, path, ["image", "stage", "pass", "row", "column", "response"], table)


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__, "test images", samples=2)
    command_line.add_argument("checkpoint", type=Path, help="checkpoint of train_image.py")
    options = command_line.parse_args(arguments)
    try:
        run = ImageRun(options.checkpoint, options.data)
        images, _ = next(iter(run.images(options.samples, options.samples)))
        stages = responses(run, images)
    except (OSError, RuntimeError, ValueError) as error:
        command_line.error(str(error))
    draw(images, stages, options.output)


if __name__ == "__main__":
    main()
