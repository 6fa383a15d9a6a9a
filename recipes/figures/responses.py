"""Draw how strongly each place of some images responds, stage by stage and pass by pass (SReT, Figure 10).

    python recipes/figures/responses.py RUN/last.pth.tar --output responses.svg

A place's response is the root mean square over its channels; each map, named STAGE.PASS, is drawn from its weakest
place (dark) to its strongest (light). Beside OUTPUT lie the responses themselves, as CSV.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from checkpoints import ImageRun
from pictures import WIDTH, page, parser, save
from torch import Tensor

from recurrence.analysis.record import loops, recorded_states
from recurrence.analysis.responses import response_map

COLUMNS = 9  # maps beside each other, over the width of a page


def grids(run: ImageRun) -> list[tuple[int, int]]:
    """Rows and columns of tokens of each loop."""
    if hasattr(run.model, "stages"):
        return [stage.grid for stage in run.model.stages]
    return [run.model.patch_embed.grid_size] * len(loops(run.model))


def responses(run: ImageRun, images: Tensor) -> list[list[Tensor]]:
    """Of each stage, of each pass: maps (B, rows, columns).

    Raises:
        ValueError: if the model has no loop.
    """
    with recorded_states(run.model) as states, torch.no_grad():
        run.model(images)
    return [[response_map(state, grid) for state in passes] for passes, grid in zip(states.values(), grids(run))]


def shown(image: Tensor) -> Tensor:
    """A normalised image (3, height, width) as it is drawn, (height, width, 3) within [0, 1]."""
    low, high = image.amin(), image.amax()
    return ((image - low) / (high - low)).permute(1, 2, 0)


def draw(images: Tensor, stages: Sequence[Sequence[Tensor]], path: Path) -> None:
    """Each image, then its maps in the order of the passes, as many beside each other as a page takes."""
    names = ["image"] + [f"{1 + stage}.{1 + run}" for stage, passes in enumerate(stages) for run in range(len(passes))]
    columns = min(COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure = page(len(images) * rows * (WIDTH / COLUMNS + 0.2))
    panels = figure.subplots(len(images) * rows, columns, squeeze=False).reshape(len(images), -1)
    for number, (image, row) in enumerate(zip(images, panels)):
        cells = [shown(image), *(maps[number] for passes in stages for maps in passes)]
        for axes, name, cell in zip(row, names, cells):
            axes.imshow(cell)
            axes.set_title(name, fontsize=8, pad=2)
        for axes in row:
            axes.set_axis_off()
    table = (
        (number + 1, index + 1, run + 1, row + 1, column + 1, float(value))
        for number in range(len(images))
        for index, passes in enumerate(stages)
        for run, maps in enumerate(passes)
        for row, line in enumerate(maps[number])
        for column, value in enumerate(line)
    )
    save(figure, path, ["image", "stage", "pass", "row", "column", "response"], table)


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__)
    command_line.add_argument("checkpoint", type=Path, help="of train_image.py")
    command_line.add_argument("--data", help="the images (default: where they were in training)")
    command_line.add_argument("--samples", type=int, default=2, help="images, spread over the test set (default 2)")
    options = command_line.parse_args(arguments)
    try:
        run = ImageRun(options.checkpoint, options.data)
        images, _ = next(iter(run.images(options.samples, options.samples)))
        found = responses(run, images)
    except ValueError as error:
        command_line.error(str(error))
    draw(images, found, options.output)


if __name__ == "__main__":
    main()
