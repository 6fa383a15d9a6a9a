"""The loss around trained weights, along filter-normalised random directions.

Source: Li et al. (arXiv:1712.09913), section 4; SReT (arXiv:2111.05297), Figure 9.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Direction = dict[str, Tensor]


def filter_normalised(model: nn.Module, seed: int) -> Direction:
    """A Gaussian direction whose filters are scaled to the norms of the model's filters.

    A filter is a row of a parameter's first dimension. Parameters of one dimension (biases, weights of norms, residual
    coefficients) do not move. A stored block has one direction, however often it runs.

    Args:
        model: at its trained weights.
        seed: of the random numbers, which are drawn on the CPU for one parameter after the other.

    Returns:
        A tensor for each parameter that moves, by name.

    Raises:
        ValueError: if no parameter moves.
    """
    generator = torch.Generator().manual_seed(seed)
    direction = {}
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            drawn = torch.randn(weight.shape, generator=generator).to(weight).flatten(1)
            scale = weight.detach().flatten(1).norm(dim=1, keepdim=True) / drawn.norm(dim=1, keepdim=True)
            direction[name] = (drawn * scale).view_as(weight)
    if not direction:
        raise ValueError(f"{type(model).__name__}: has no parameter of two dimensions or more to move")
    return direction


@contextmanager
def moved_weights(model: nn.Module, directions: Sequence[Direction], amounts: Sequence[float]) -> Iterator[None]:
    """Within the context, the model has the weights `weights + sum amount * direction`.

    Args:
        model: its weights are restored afterwards.
        directions: at least one, see :func:`filter_normalised`; all move the same parameters.
        amounts: one per direction; 1 moves each filter by its own length.
    """
    parameters = dict(model.named_parameters())
    before = {name: parameters[name].detach().clone() for name in directions[0]}
    try:
        with torch.no_grad():
            for direction, amount in zip(directions, amounts):
                for name, step in direction.items():
                    parameters[name].add_(step, alpha=float(amount))
        yield
    finally:
        with torch.no_grad():
            for name, weight in before.items():
                parameters[name].copy_(weight)


def loss_surface(
    model: nn.Module, loss: Callable[[], float], directions: Sequence[Direction], steps: Sequence[float]
) -> Tensor:
    """The loss at every combination of steps along the directions.

    Args:
        model: at its trained weights, which are restored afterwards.
        loss: computes the loss of the model.
        directions: one for a line, two for a plane.
        steps: amounts along each direction; 0 is the trained model, 1 moves each filter by its own length.

    Returns:
        (steps,) or (steps, steps), the first direction first, float64.
    """
    amounts = torch.cartesian_prod(*[torch.as_tensor(steps, dtype=torch.float64)] * len(directions))
    found = []
    for point in amounts.view(-1, len(directions)).tolist():
        with moved_weights(model, directions, point):
            found.append(float(loss()))
    return torch.tensor(found, dtype=torch.float64).view([len(steps)] * len(directions))
