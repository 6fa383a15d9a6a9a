"""Plot the linear CKA between the layers of two trained models (RingFormer, Figures 2 and 4).

    python recipes/figures/cka.py A=RUN/checkpoint_best.pt B=OTHER/checkpoint_best.pt --output cka.svg

Two translation or language models are compared over the tokens of the same sentences, without padding, separately for
encoder and decoder, after each layer: each pass, or in One Wide FFN each attention with the FFN that follows it.
CKA is 1 if two representations are equal up to rotation and scale. The numbers are saved next to the picture, as CSV.
If both models have as many layers, the mean over corresponding layers is printed, with its 95 % interval (a bootstrap
over the minibatches).

Source: Kornblith et al. (arXiv:1905.00414) for linear CKA; Nguyen et al. (arXiv:2010.15327), section 3, for its form in
minibatches with the unbiased estimator of HSIC of Song et al. (JMLR 13, 2012), equation 5.
"""

from collections.abc import Iterator, Sequence
from math import isnan, nan
from pathlib import Path

import numpy as np
import torch
from checkpoints import TextRun
from matplotlib.axes import Axes
from pictures import BLACK, WHITE, labelled, page, parser, save
from torch import Tensor, nn

from recurrence.analysis.record import recorded_states
from recurrence.loop import Loop, named_loops

Layers = dict[str, list[Tensor]]
RESAMPLES = 1000
MIN_SAMPLES = 4  # the unbiased estimator divides by n - 3


class MinibatchCKA:
    """Linear CKA of each layer of one model with each layer of another, accumulated over minibatches.

    The expected estimate does not depend on the size of the minibatches.
    """

    def __init__(self):
        self.minibatches: list[list[Tensor]] = []  # HSIC between the models, of the first and of the second

    def update(self, first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
        """Adds a minibatch: the layers of the two models for the same n samples, (n, features) each.

        Raises:
            ValueError: if there are fewer than 4 samples.
        """
        if len(first[0]) < MIN_SAMPLES:
            raise ValueError(f"minibatch of {len(first[0])}: must be >= {MIN_SAMPLES} samples")
        one, other = (torch.stack([gram(layer) for layer in layers]) for layers in (first, second))
        itself = [torch.cat([hsic(each[None], each[None])[0] for each in grams]) for grams in (one, other)]
        self.minibatches.append([hsic(one, other), *itself])

    def compute(self, chosen: Sequence[int] | None = None) -> Tensor:
        """(layers of the first, layers of the second), float64; NaN where a layer is the same for all samples.

        Args:
            chosen: indices of minibatches; None for all.
        """
        kept = self.minibatches if chosen is None else [self.minibatches[index] for index in chosen]
        between, one, other = (torch.stack(part).sum(dim=0) for part in zip(*kept))
        return between / (one[:, None] * other).sqrt()

    def bootstrap(self, resamples: int) -> Tensor:
        """The same for minibatches drawn with replacement: (resamples, layers of the first, layers of the second)."""
        generator, count = torch.Generator().manual_seed(0), len(self.minibatches)
        drawn = [torch.randint(count, (count,), generator=generator).tolist() for _ in range(resamples)]
        return torch.stack([self.compute(chosen) for chosen in drawn])


def hsic(one: Tensor, other: Tensor) -> Tensor:
    """The unbiased estimate of the Hilbert-Schmidt independence criterion of each pair of Gram matrices.

    (P, n, n), (Q, n, n) -> (P, Q). Source: Song et al. (JMLR 13, 2012), equation 5.
    """
    n = one.size(-1)
    one, other = (grams - torch.diag_embed(grams.diagonal(dim1=1, dim2=2)) for grams in (one, other))
    rows, columns = one.sum(dim=2), other.sum(dim=2)
    products = one.flatten(1) @ other.flatten(1).T
    totals = rows.sum(dim=1)[:, None] * columns.sum(dim=1) / ((n - 1) * (n - 2))
    return (products + totals - 2 / (n - 2) * rows @ columns.T) / (n * (n - 3))


def gram(features: Tensor) -> Tensor:
    """(n, features) -> (n, n), float64. Centring does not change HSIC, but keeps precision."""
    features = features.double() - features.double().mean(dim=0)
    return features @ features.T


@torch.no_grad()
def evaluate(model: nn.Module, *inputs: Tensor, **named: Tensor) -> None:
    """Runs the model for its recorder. Not inlined in the generators: they would keep no_grad active in the caller."""
    model(*inputs, **named)


def layer_ends(loop: Loop, passes: int | None = None) -> list[int]:
    """Which of so many passes, or of all, end a layer: all but those with an FFN alone behind them."""
    attends = [loop.blocks[loop.order[index]].self_attn is not None for index in loop.indices(passes)]
    return [number for number, next_attends in enumerate([*attends[1:], True]) if next_attends]


def text_layers(run: TextRun, samples: int, batch: int, split: str) -> Iterator[Layers]:
    """For each batch of sentences, the states after each layer of each side, (tokens without padding, C)."""
    pad, loops = run.task.target_dictionary.pad(), named_loops(run.model)
    with recorded_states(run.model) as states:
        for inputs in run.batches(samples, batch, split):
            evaluate(run.model, **inputs)
            source = inputs["src_tokens"]
            tokens = {"encoder": source, "decoder": inputs.get("prev_output_tokens", source)}
            sides = {}
            for name, passes in states.items():
                side = name.partition(".")[0]
                kept = tokens[side].ne(pad)
                sides[side] = [passes[number][kept] for number in layer_ends(loops[name], len(passes))]
            yield sides


def compare(
    first: Path, second: Path, samples: int, batch: int, data: str | None, split: str = "valid"
) -> dict[str, MinibatchCKA]:
    """CKA of the layers of each side that both models have.

    Raises:
        ValueError: if a file is not a checkpoint of fairseq-train, or a minibatch has fewer than 4 samples.
    """
    sides: dict[str, MinibatchCKA] = {}
    batches = [text_layers(TextRun(path, data), samples, batch, split) for path in (first, second)]
    for layers, other_layers in zip(*batches, strict=True):
        for side in layers.keys() & other_layers.keys():
            sides.setdefault(side, MinibatchCKA()).update(layers[side], other_layers[side])
    return {side: sides[side] for side in sorted(sides, reverse=True)}


def corresponding(found: MinibatchCKA) -> str:
    """The mean over corresponding layers of two models with as many layers, with its 95 % interval over minibatches."""
    said = f"mean over corresponding layers {float(found.compute().diagonal().mean()):.3f}"
    if len(found.minibatches) == 1:
        return f"{said} (one minibatch, so no interval)"
    means = found.bootstrap(RESAMPLES).diagonal(dim1=1, dim2=2).mean(dim=1)
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return f"{said} ({low:.3f} to {high:.3f})"


def write_values(axes: Axes, values: Tensor) -> None:
    """Writes each value into its cell."""
    for (row, column), value in np.ndenumerate(values):
        if not isnan(value):
            colour = BLACK if value > 0.5 else WHITE
            axes.text(column + 0.5, row + 0.5, f"{value:.2f}", ha="center", va="center", color=colour)


def draw(sides: dict[str, Tensor], labels: tuple[str, str], path: Path, upper: bool = False) -> None:
    """Draws one panel per side, the second model's layers to the right; `upper` omits the cells below the diagonal."""
    if upper:
        sides = {
            side: values.masked_fill(torch.ones_like(values).tril(-1).bool(), nan) for side, values in sides.items()
        }
    figure = page(3.1) if len(sides) > 1 else page(3.2, 4.0)
    panels = figure.subplots(1, len(sides), squeeze=False)[0]
    for axes, (side, values) in zip(panels, sides.items()):
        mesh = axes.pcolormesh(values, vmin=0, vmax=1)
        axes.grid(False)
        axes.set(xlabel=f"layer of {labels[1]}", ylabel=f"layer of {labels[0]}", aspect="equal")
        axes.set_title(side)
        for axis, count in ((axes.xaxis, values.shape[1]), (axes.yaxis, values.shape[0])):
            shown = range(0, count, 1 + (count - 1) // 12)
            axis.set_ticks([index + 0.5 for index in shown], [str(index + 1) for index in shown])
        if max(values.shape) <= 8:
            write_values(axes, values)
    figure.colorbar(mesh, ax=list(panels), label="linear CKA", shrink=0.8)
    rows = [
        (side, row + 1, column + 1, value)
        for side, values in sides.items()
        for (row, column), value in np.ndenumerate(values)
        if not isnan(value)
    ]
    save(figure, path, ["side", f"layer of {labels[0]}", f"layer of {labels[1]}", "linear CKA"], rows)


def main(arguments: list[str] | None = None) -> None:
    command_line = parser(__doc__, "preprocessed sentences", samples=1000, batch=64)
    command_line.add_argument("first", type=labelled, metavar="LABEL=CHECKPOINT")
    command_line.add_argument("second", type=labelled, metavar="LABEL=CHECKPOINT")
    command_line.add_argument("--split", default="valid", choices=["valid", "test"], help="(default valid)")
    command_line.add_argument("--upper", action="store_true", help="omit the cells below the diagonal")
    options = command_line.parse_args(arguments)
    try:
        paths = options.first[1], options.second[1]
        sides = compare(*paths, options.samples, options.batch, options.data, options.split)
    except (OSError, RuntimeError, ValueError) as error:
        command_line.error(str(error))
    tables = {side: found.compute() for side, found in sides.items()}
    for side, values in tables.items():
        if values.size(0) == values.size(1):
            print(f"{side}: {corresponding(sides[side])}")
    draw(tables, (options.first[0], options.second[0]), options.output, options.upper)


if __name__ == "__main__":
    main()
