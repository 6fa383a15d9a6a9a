"""The loss around trained weights, along random directions in which each filter has the length of the model's own.

Source: Li et al. (arXiv:1712.09913), section 4; SReT (arXiv:2111.05297), Figure 9.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Direction = dict[str, Tensor]


def filter_normalised(model: nn.Module, seed: int) -> Direction:
    """A Gaussian direction of which each filter is scaled to the norm of the model's own.

    A filter is a row of a parameter's first dimension. Parameters of one dimension, which are biases, the weights of
    norms and residual coefficients, stay where they are. A stored block has one direction,
    however often it runs.

    Args:
        model: at its trained weights.
        seed: of the draw, which is made on the CPU, a parameter after the other.

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
def moved(model: nn.Module, directions: Sequence[Direction], amounts: Sequence[float]) -> Iterator[None]:
    """The model at `weights + sum amount * direction` while the context is open; afterwards its own, to the bit."""
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
        model: at its trained weights, which it has again afterwards.
        loss: computes the loss of the model as it is.
        directions: one for a line, two for a plane.
        steps: amounts along each direction; 0 is the trained model, 1 moves each filter by its own length.

    Returns:
        (steps,) or (steps, steps), the first direction first, float64.
    """
    amounts = torch.cartesian_prod(*[torch.as_tensor(steps, dtype=torch.float64)] * len(directions))
    found = []
    for point in amounts.view(-1, len(directions)).tolist():
        with moved(model, directions, point):
            found.append(float(loss()))
    return torch.tensor(found, dtype=torch.float64).view([len(steps)] * len(directions))
