"""The small parts of every block: dropout, FFN, residual sums, and the sublayer around a function."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from recurrence.private_torch import func_is_active

STEPS = 1 << 16


class Dropout(nn.Dropout):
    """torch's module with a quick mask on CPUs: four decisions from each 64-bit random number.

    PyTorch draws one random number per element there, an eighth of the time of a training step. The numbers come from
    PyTorch's generator, so seeds and resumed runs work as usual, and so do hooks, `train()` and a changed `p`.

    Differs from PyTorch's: rates are rounded to steps of 1 / 65,536, and kept elements are scaled by the rounded rate.
    """

    def forward(self, x: Tensor) -> Tensor:
        """In training, zeroes elements at the rate p and scales the others by 1 / (1 - p): (...) -> the same."""
        dropped = round(self.p * STEPS)  # of STEPS equally likely numbers
        if (
            not self.training
            or not 0 < dropped < STEPS
            or type(x) is not Tensor  # a proxy of torch.fx, or a subclass
            or x.device.type != "cpu"
            or torch.compiler.is_compiling()
            or torch.jit.is_tracing()
            or func_is_active()
        ):
            return super().forward(x)
        numbers = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device="cpu").random_(-(1 << 63), None)
        # Compared in place, which takes a tenth of the time of a comparison that writes bool.
        kept = numbers.view(torch.int16)[: x.numel()].ge_(dropped - STEPS // 2).view(x.shape)
        return x * kept.to(x.dtype).mul_(STEPS / (STEPS - dropped))


class FeedForward(nn.Module):
    """`W2 activation(W1 x)`.

    Args:
        width, hidden_width: of x and between the two products.
        activation: applied to the hidden units.
        bias: whether W1 and W2 have biases.
        dropout: rate on the hidden units.
    """

    def __init__(
        self, width: int, hidden_width: int, activation: Callable[[Tensor], Tensor], bias: bool, dropout: float
    ):
        super().__init__()
        self.activation, self.dropout = activation, Dropout(dropout)
        self.up = nn.Linear(width, hidden_width, bias=bias)
        self.down = nn.Linear(hidden_width, width, bias=bias)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """(..., C) -> (..., C). hidden is W1 x, (..., F), if the caller has projected x."""
        hidden = self.up(x) if hidden is None else hidden
        return self.down(self.dropout(self.activation(hidden)))


class Sum(nn.Module):
    """A residual sum: `x + y`."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x: the stream, y: the branch, both (B, T, C) -> (B, T, C)."""
        return x + y

    def factors(self) -> tuple[Tensor | float, float]:
        """The factors of x, a number or (C,), and of y."""
        return 1.0, 1.0


class Sublayer(nn.Module):
    """A function in the residual stream: `norm(x + f(x))`, or pre-norm `x + f(norm(x))`.

    It has no parameters: the norm and the sum belong to the block or to the pass, and are passed in.

    Args:
        dropout: rate on the function's output.
        pre_norm: norm before the function instead of after the sum.
    """

    def __init__(self, dropout: float, pre_norm: bool):
        super().__init__()
        self.dropout, self.pre_norm = Dropout(dropout), pre_norm

    def forward(
        self,
        x: Tensor,
        function: Callable[[Tensor], Tensor],
        norm: Callable[[Tensor], Tensor],
        add: Callable[[Tensor, Tensor], Tensor],
        drop_path: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """(B, T, C) -> (B, T, C). `add(stream, branch)` is the residual sum."""
        y = self.dropout(function(norm(x) if self.pre_norm else x))
        y = y if drop_path is None else drop_path(y)
        return add(x, y) if self.pre_norm else norm(add(x, y))
