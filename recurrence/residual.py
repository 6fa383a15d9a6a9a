"""Residual sums, drop path, and the projection that SReT puts between the passes of a shared block.

Source: SReT (arXiv:2111.05297), section 3: learnable residual connections (LRC), the non-linear projection layer (NLL).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.eager import runs_eagerly
from recurrence.errors import FieldError
from recurrence.linear import apply


class Sum(nn.Module):
    """`x + y`."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x: the stream, y: the branch, both (B, T, C) -> (B, T, C)."""
        return x + y


class Coefficients(nn.Module):
    """`identity * x + branch * y` with two learnable scalars, both 1 at the start.

    Differs from the paper: its equations give the branches alpha, gamma and zeta, its text about their evolution the
    identities; the names here say which is which.
    """

    def __init__(self):
        super().__init__()
        self.identity = nn.Parameter(torch.ones(1))
        self.branch = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x: the stream, y: the branch, both (B, T, C) -> (B, T, C)."""
        if runs_eagerly(x, y) and x.shape == y.shape and x.dtype == y.dtype == self.branch.dtype == torch.float32:
            return _Weighted.apply(x, y, self.identity, self.branch)
        return torch.addcmul(self.branch * y, x, self.identity)


def named_coefficients(model: nn.Module) -> dict[str, float]:
    """The coefficients of all residual sums of a model, by parameter name."""
    sums = {name: module for name, module in model.named_modules() if isinstance(module, Coefficients)}
    return {f"{name}.{role}": value.item() for name, each in sums.items() for role, value in each.named_parameters()}


class _Weighted(torch.autograd.Function):
    """`a x + b y`; the gradients of a and b are dot products, which need no temporary tensor."""

    @staticmethod
    def forward(ctx, x, y, a, b):
        ctx.save_for_backward(x, y, a, b)
        return torch.addcmul(b * y, x, a)

    @staticmethod
    def backward(ctx, grad):
        x, y, a, b = ctx.saved_tensors
        flat, needs = grad.reshape(-1), ctx.needs_input_grad
        grad_x = grad * a if needs[0] else None
        grad_y = grad * b if needs[1] else None
        grad_a = flat.dot(x.reshape(-1)).view_as(a) if needs[2] else None
        grad_b = flat.dot(y.reshape(-1)).view_as(b) if needs[3] else None
        return grad_x, grad_y, grad_a, grad_b


class DropPath(nn.Module):
    """In training, drops a branch for entire samples and scales the others by 1 / (1 - rate).

    Source: Huang et al. (arXiv:1603.09382), section 3.
    """

    def __init__(self, rate: float):
        super().__init__()
        if not 0 <= rate <= 1:
            raise FieldError("drop_path", rate, "must be a rate within [0, 1]")
        self.rate, self.never, self.always = rate, rate == 0, rate == 1
        # A tensor, because each new number would recompile a compiled block; no buffer, to keep it out of checkpoints.
        self._keeps = torch.tensor(1 - rate, dtype=torch.float64, device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        if self.never or not self.training:
            return x
        if self.always:
            return x * 0
        keeps = self._keeps if isinstance(x, Tensor) else 1 - self.rate  # a traced graph would store the tensor
        chance = x.new_ones(x.shape[0], 1, 1) * keeps  # one draw per sample
        return x * (chance.bernoulli() / chance)


class NonlinearProjection(nn.Module):
    """SReT's NLL: an MLP after a run of a shared block, owned by that pass.

    Args:
        width: C.
        hidden_width: hidden width of the MLP.
        norm_eps: LayerNorm's epsilon.
        learned: whether the residual sum has learnable coefficients.
    """

    def __init__(self, width: int, hidden_width: int, norm_eps: float, learned: bool):
        super().__init__()
        self.norm = nn.LayerNorm(width, norm_eps)
        self.up = nn.Linear(width, hidden_width)
        self.down = nn.Linear(hidden_width, width)
        self.residual = Coefficients() if learned else Sum()

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return self.residual(x, apply(self.down, F.gelu(apply(self.up, self.norm(x)))))
