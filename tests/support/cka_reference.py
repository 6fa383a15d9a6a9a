"""Linear CKA of all samples at once, for comparison with the estimate from minibatches."""

from torch import Tensor


def linear_cka(x: Tensor, y: Tensor) -> float:
    """The biased estimate |Y'X|^2 / (|X'X| |Y'Y|), X and Y centred, (n, features) each."""
    x, y = (features - features.mean(dim=0) for features in (x, y))
    return float((y.T @ x).square().sum() / ((x.T @ x).norm() * (y.T @ y).norm()))
