"""How strongly each place of an image responds, as in SReT (arXiv:2111.05297), Figure 10."""

from collections.abc import Sequence

import torch
from torch import Tensor


def response_map(state: Tensor, grid: Sequence[int]) -> Tensor:
    """The root mean square over the channels of each token.

    Args:
        state: (B, T, C); tokens before those of the grid, such as a class token, are left out.
        grid: rows and columns of tokens.

    Returns:
        (B, rows, columns), in the units of the state.

    Raises:
        ValueError: if there are fewer tokens than places.
    """
    rows, columns = grid
    if state.size(1) < rows * columns:
        raise ValueError(f"{state.size(1)} tokens: must be >= the {rows} x {columns} places of the grid")
    places = state[:, state.size(1) - rows * columns :]
    lengths = torch.linalg.vector_norm(places, dim=-1)  # unlike the squares, it does not overflow in half precision
    return (lengths / places.size(-1) ** 0.5).unflatten(1, (rows, columns))
