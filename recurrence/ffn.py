"""Feed-forward networks: over the features of each token, gated, and over the tokens of each feature."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.dropout import dropout
from recurrence.linear import apply
from recurrence.signal import LevelSignal, project


class FeedForward(nn.Module):
    """`W2 activation(W1 x)`.

    Args:
        width, hidden_width: of x and between the two products.
        activation: applied to the hidden units.
        bias: whether W1 and W2 have biases.
        dropout: rate on the hidden units.
    """

    def __init__(
        self,
        width: int,
        hidden_width: int,
        activation: Callable[[Tensor], Tensor] = F.relu,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.activation, self.dropout = activation, dropout
        self.up = nn.Linear(width, hidden_width, bias=bias)
        self.down = nn.Linear(hidden_width, width, bias=bias)

    def forward(
        self, x: Tensor, raw: Tensor | None = None, up: LevelSignal | None = None, down: LevelSignal | None = None
    ) -> Tensor:
        """(..., C) -> (..., C). up and down: the pass's terms on W1 and W2; raw: the input of up if it is not x."""
        hidden = dropout(self.activation(project(self.up, x, up, raw)), self.dropout, self.training)
        return project(self.down, hidden, down)


class SwiGLU(nn.Module):
    """`down(silu(gate x) * up x)` without biases, gate and up by one GEMM.

    Source: Shazeer (arXiv:2002.05202), equation 6.

    Args:
        width, hidden_width: of x and between the products.
        dropout: rate on the hidden units.
    """

    def __init__(self, width: int, hidden_width: int, dropout: float = 0.0):
        super().__init__()
        self.dropout = dropout
        self.gate_up = nn.Linear(width, 2 * hidden_width, bias=False)
        self.down = nn.Linear(hidden_width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        gate, up = apply(self.gate_up, x).chunk(2, dim=-1)
        return apply(self.down, dropout(F.silu(gate) * up, self.dropout, self.training))


class TokenMixing(FeedForward):
    """An MLP over the tokens, the same for every feature.

    Source: MLP-Mixer (arXiv:2105.01601), section 2.
    """

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # passes add nothing to it
        """(B, N, C) -> (B, N, C)."""
        return super().forward(x.transpose(1, 2)).transpose(1, 2)
