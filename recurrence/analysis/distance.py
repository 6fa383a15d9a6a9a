"""How far attention reaches across an image.

Source: Dosovitskiy et al. (arXiv:2010.11929), Figure 7, and RingFormer (arXiv:2502.13181), Figure 3.
Differs from RingFormer's published code: attention to the class token is left out and the other weights are normalised
again, so that uniform attention has the grid's mean distance; in that code it counts as distance 0.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def patch_distances(grid: Sequence[int], patch: Sequence[int]) -> Tensor:
    """Distances in pixels between the centres of all pairs of patches, which are numbered row by row: (N, N), float64.

    Args:
        grid: rows and columns of patches.
        patch: height and width of a patch in pixels.
    """
    rows, columns = (torch.arange(count, dtype=torch.float64) * side for count, side in zip(grid, patch))
    centres = torch.cartesian_prod(rows, columns)
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")


def mean_attention_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """Mean distance between a patch and those that it attends to, over images and patches, in the unit of `distances`.

    Args:
        weights: (B, H, T, T); tokens before the last N, such as a class token, are left out.
        distances: (N, N), see :func:`patch_distances`.

    Returns:
        (H,), float64.

    Raises:
        ValueError: if there are fewer tokens than patches.
    """
    prefix = weights.size(-1) - len(distances)
    if prefix < 0:
        raise ValueError(f"{weights.size(-1)} tokens: must be >= the {len(distances)} patches of the grid")
    weights = weights[..., prefix:, prefix:].double()
    mean_distance = (weights * distances.to(weights)).sum(dim=-1) / weights.sum(dim=-1)
    return mean_distance.mean(dim=(0, 2))
