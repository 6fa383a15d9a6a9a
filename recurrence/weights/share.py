"""Turns unshared layers into a loop over depth: each block is the mean of the layers that share it.

With a rank, each pass also gets a low-rank term per projection that approximates the difference to its layer.

Source: Relaxed Recursive Transformers (arXiv:2410.20672), section 3.2: blocks by averaging, residuals by truncated
singular value decomposition. At full rank the loop computes exactly what the layers compute.

Differs from the paper: without a rank, biases and LayerNorms are averaged, too; with one, each pass keeps those of its
layer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from recurrence.block import PROJECTIONS
from recurrence.order import Order
from recurrence.weights.names import StateDict


def share(layers: Sequence[StateDict], order: Order, rank: int | None = None) -> StateDict:
    """The state dict of the :class:`recurrence.loop.Loop`, in the dtype of the layers.

    Args:
        layers: in the key names of :class:`recurrence.block.Block`, with biases and a LayerNorm for each sublayer, as
            :func:`recurrence.weights.unshare.unshare` gives them; all alike.
        order: the block that runs as each layer; one pass per layer.
        rank: of the terms; None for a loop whose passes own nothing.
    """
    matrices = {f"{place}.weight" for place, _ in PROJECTIONS.values()}
    loop = {}
    for which in sorted(set(order)):
        tied = [layer for layer, block in zip(layers, order, strict=True) if block == which]
        for key in tied[0]:
            if rank is None or key in matrices:
                mean = torch.stack([layer[key].double() for layer in tied]).mean(0)
                loop[f"blocks.{which}.{key}"] = mean.to(tied[0][key].dtype)
    if rank is not None:
        for index, (layer, which) in enumerate(zip(layers, order)):
            own = _own(layer, {key: loop[f"blocks.{which}.{key}"] for key in layer if key in matrices}, rank)
            loop.update({f"own.{index}.{key}": tensor for key, tensor in own.items()})
    return loop


def _own(layer: StateDict, shared: StateDict, rank: int) -> StateDict:
    """The parameters of one pass: LayerNorms, biases and low-rank terms."""
    own = {key: tensor for key, tensor in layer.items() if key.startswith("norms.")}
    for name, (place, targets) in PROJECTIONS.items():
        key = f"{place}.weight"
        if key not in layer:
            continue
        residual = (layer[key].double() - shared[key].double()).chunk(targets)
        factors = [truncated(part, rank) for part in residual]
        for factor, parts in zip(("up", "down"), zip(*factors)):
            own[f"terms.{name}.{factor}"] = torch.stack(parts).to(layer[key].dtype)
        own[f"terms.{name}.bias"] = layer[f"{place}.bias"]
    return own


def truncated(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The nearest matrix of this rank, by truncated SVD, as factors: (out, in) -> up (rank, out), down (rank, in).

    Both factors get the square roots of the singular values. If the matrix has fewer of them, the rest is 0.
    """
    u, values, v = torch.linalg.svd(matrix, full_matrices=False)
    kept = min(rank, len(values))
    roots = values[:kept].sqrt()[:, None]
    up, down = matrix.new_zeros(rank, matrix.size(0)), matrix.new_zeros(rank, matrix.size(1))
    up[:kept], down[:kept] = u.T[:kept] * roots, v[:kept] * roots
    return up, down
