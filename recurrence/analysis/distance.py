"""How far attention reaches across an image.

Source: Dosovitskiy et al. (arXiv:2010.11929), Figure 7, and RingFormer (arXiv:2502.13181), Figure 3.
Differs from RingFormer's published code: what a patch gives to the class token is left out of its weights before they
are averaged, where that code lets it count as distance 0; so attention that is uniform has the grid's mean distance.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def patch_distances(grid: Sequence[int], patch: Sequence[int]) -> Tensor:
    """Distance in pixels between the centres of every two patches, row by row: (N, N), float64.

    Args:
        grid: rows and columns of patches.
        patch: height and width of a patch in pixels.
    """
    rows, columns = (torch.arange(count, dtype=torch.float64) * side for count, side in zip(grid, patch))
    centres = torch.cartesian_prod(rows, columns)
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")


def mean_attention_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """The mean, over images and patches, of the distance at which a patch looks, in the unit of the distances.

    Args:
        weights: (B, H, T, T); what stands before the last N tokens, such as a class token, is left out.
        distances: (N, N), see :func:`patch_distances`.

    Returns:
        (H,), float64.

    Raises:
        ValueError: if there are fewer tokens than patches.
    """
    prefix = weights.size(-1) - len(distances)
    if prefix < 0:
        raise ValueError(f"{weights.size(-1)} tokens: must be >= the {len(distances)} patches of the grid")
    among = weights[..., prefix:, prefix:].double()
    reached = (among * distances.to(among)).sum(dim=-1) / among.sum(dim=-1)
    return reached.mean(dim=(0, 2))
