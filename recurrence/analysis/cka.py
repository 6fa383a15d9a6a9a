"""Centred kernel alignment of the layers of two models: 1 if their representations are equal up to rotation and scale.

Source: Kornblith et al. (arXiv:1905.00414) for linear CKA; Nguyen et al. (arXiv:2010.15327), section 3, for its form in
minibatches with the unbiased estimator of HSIC of Song et al. (JMLR 13, 2012), equation 5. RingFormer
(arXiv:2502.13181), Figures 2 and 4, compares models with it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

MIN_SAMPLES = 4  # the unbiased estimator divides by n - 3


class MinibatchCKA:
    """Linear CKA of each layer of one model with each layer of another, accumulated over minibatches.

    The expected estimate does not depend on the size of the minibatches.
    """

    def __init__(self):
        self._minibatches: list[list[Tensor]] = []

    def update(self, first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
        """Adds a minibatch.

        Args:
            first: the layers of one model, (n, features) each.
            second: the layers of the other model, for the same n samples.

        Raises:
            ValueError: if there are fewer than 4 samples, or numbers of samples or layers differ.
        """
        for layer in (*first, *second):
            if layer.dim() != 2:
                raise ValueError(f"features of shape {tuple(layer.shape)}: must be (samples, features)")
            if len(layer) != len(first[0]):
                raise ValueError(f"{len(first[0])} and {len(layer)} samples: must be the same number")
        if len(first[0]) < MIN_SAMPLES:
            raise ValueError(f"minibatch of {len(first[0])}: must be >= {MIN_SAMPLES} samples")
        one, other = (torch.stack([_gram(layer) for layer in layers]) for layers in (first, second))
        found = [hsic(one, other), _self_hsic(one), _self_hsic(other)]
        if self._minibatches and self._minibatches[0][0].shape != found[0].shape:
            before = tuple(self._minibatches[0][0].shape)
            raise ValueError(f"{tuple(found[0].shape)} layers: must be {before}, as before")
        self._minibatches.append(found)

    def compute(self) -> Tensor:
        """(layers of the first, layers of the second), float64; NaN where a layer is the same for all samples.

        Raises:
            ValueError: before the first minibatch.
        """
        return _cka(*(part.sum(dim=0) for part in self._parts()))

    def bootstrap(self, resamples: int, seed: int = 0) -> Tensor:
        """The same for minibatches drawn with replacement: (resamples, layers of the first, layers of the second).

        Raises:
            ValueError: before the first minibatch.
        """
        parts, generator = self._parts(), torch.Generator().manual_seed(seed)
        count = len(parts[0])
        drawn = [torch.randint(count, (count,), generator=generator) for _ in range(resamples)]
        return torch.stack([_cka(*(part[indices].sum(dim=0) for part in parts)) for indices in drawn])

    def _parts(self) -> list[Tensor]:
        """HSIC between the models, of the first and of the second, each with the minibatches as first dimension."""
        if not self._minibatches:
            raise ValueError("no minibatch: CKA needs at least one")
        return [torch.stack(part) for part in zip(*self._minibatches)]


def _cka(between: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return between / (one[:, None] * other).sqrt()


def hsic(one: Tensor, other: Tensor) -> Tensor:
    """The unbiased estimate of the Hilbert-Schmidt independence criterion of each pair of Gram matrices.

    Args:
        one: (P, n, n).
        other: (Q, n, n).

    Returns:
        (P, Q).

    Source: Song et al. (JMLR 13, 2012), equation 5.
    """
    n = one.size(-1)
    one, other = (grams - torch.diag_embed(grams.diagonal(dim1=1, dim2=2)) for grams in (one, other))
    rows, columns = one.sum(dim=2), other.sum(dim=2)
    products = one.flatten(1) @ other.flatten(1).T
    totals = rows.sum(dim=1)[:, None] * columns.sum(dim=1) / ((n - 1) * (n - 2))
    return (products + totals - 2 / (n - 2) * rows @ columns.T) / (n * (n - 3))


def _self_hsic(grams: Tensor) -> Tensor:
    """HSIC of each layer with itself: (P,)."""
    return torch.cat([hsic(gram[None], gram[None])[0] for gram in grams])


def _gram(features: Tensor) -> Tensor:
    """(n, features) -> (n, n), float64. Centring does not change HSIC, but keeps precision."""
    features = features.double() - features.double().mean(dim=0)
    return features @ features.T
