"""Level signals, from which a shared block knows at which depth it runs.

Source: RingFormer (arXiv:2502.13181), section 3.2, equations for Q, K, V and the FFN input; Table 4 for the
variants. `M = up^T down` is low-rank: `down` maps to the rank, `up` back.

Differs from the paper: its text says that `down` starts at zero; its formula and the published code start `up` at zero,
as here. It gives no distribution for the random start, which it found less stable; here both factors start like
PyTorch's Linear, because M would stay near zero with a random `up` and a `down` of 1e-6.
Differs from the published code: M is multiplied out only for many tokens, where that is cheaper.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.linear import apply, linear
from recurrence.private_torch import HALF_PRECISION, is_plain, product_dtype


class LevelSignal(nn.Module):
    """The signals of one pass on `targets` stacked projections of the same input (3 for Q, K and V).

    With init "zero", every signal starts at exactly 0: `up` is 0 and `down` normal with deviation 1e-6; a full-rank M
    is 0. "random" draws all of them uniformly within 1 / sqrt(in), like PyTorch's Linear.

    Args:
        targets: K, number of projections stacked in the weight.
        width: C, width of the input.
        out_width: width of each projection.
        rank: rank of each M; None for full rank.
        before: True for `W (x + M x)`, with M of width x width; False for `W x + M x`, with M of out_width x width.
        init: "zero" or "random".
    """

    def __init__(self, targets: int, width: int, out_width: int, rank: int | None, before: bool, init: str = "zero"):
        super().__init__()
        self.before, self.targets, self.width, self.rank = before, targets, width, rank
        self.register_parameter("bias", None)  # signals have none; a pass's own low-rank term may
        target_width = width if before else out_width
        if rank is None:
            self.full = nn.Parameter(torch.zeros(targets, target_width, width))
        else:
            self.up = nn.Parameter(torch.zeros(targets, rank, target_width))
            self.down = nn.Parameter(torch.randn(targets, rank, width) * 1e-6)
        if init == "random":
            for name, factor in self.named_parameters():
                bound = (rank if name == "up" else width) ** -0.5
                nn.init.uniform_(factor, -bound, bound)

    @property
    def low_rank(self) -> bool:
        """Whether M is stored as the two factors `up` and `down`."""
        return self.rank is not None

    def matrix(self) -> Tensor:
        """M of every target, multiplied out: (K, out, C)."""
        return self.up.transpose(1, 2) @ self.down if self.low_rank else self.full

    def forward(self, x: Tensor) -> Tensor:
        """M x of every target: (N, C) -> (K, N, out)."""
        if not self.low_rank:
            return x @ self.full.transpose(1, 2)
        low = linear(x, self.down.flatten(0, 1)).view(-1, self.targets, self.rank)
        return torch.bmm(low.transpose(0, 1), self.up)

    def fold(self, weight: Tensor) -> Tensor:
        """The weight (K * out, C) that gives projection and signal in one product."""
        if not self.before:
            return weight + self.matrix().view_as(weight)
        stacked = weight.view(self.targets, -1, weight.size(1))
        low = (stacked @ self.up.transpose(1, 2)) @ self.down if self.low_rank else stacked @ self.full
        return weight + low.view_as(weight)

    def worth_folding(self, tokens: int, out_width: int) -> bool:
        """Whether folding takes fewer multiplications than the low-rank path.

        Folding costs rank x the size of the weight, the low-rank path rank x the inputs and outputs of all tokens. A
        step of beam search has few tokens and takes the path, which also leaves the shared weight in cache.
        """
        if torch.compiler.is_compiling():
            return True  # a graph serves any number of tokens
        if self.before:
            return tokens > out_width
        if not self.low_rank:
            return True
        return tokens * (self.width + out_width) > self.width * out_width

    def bias_of(self, layer: nn.Linear) -> Tensor | None:
        """The bias of the projection: the pass's own if it has one, else the layer's."""
        return layer.bias if self.bias is None else self.bias

    def project(self, layer: nn.Linear, x: Tensor, signal_input: Tensor | None = None) -> Tensor:
        """Projects x and adds the signal, by whichever exact form is cheaper.

        A layer that is not plain (wrapped, quantised, hooked) is called, never folded.

        Args:
            layer: C -> K * out.
            x: (B, T, C), input of the projection.
            signal_input: (B, T, C), None for x. In a pre-norm block it is the stream before the norm.

        Returns:
            (K, B, T, out), perhaps a view.
        """
        signal_input = x if signal_input is None else signal_input
        plain, (batch, length, width) = is_plain(layer), x.shape
        if plain and self.low_rank and isinstance(x, Tensor) and product_dtype(x) in HALF_PRECISION:
            y = self._rounded_once(layer, x, signal_input)
        elif plain and signal_input is x and self.worth_folding(batch * length, layer.out_features // self.targets):
            y = linear(x, self.fold(layer.weight), self.bias_of(layer))
        else:
            signal = self(signal_input.reshape(-1, width))
            y = self._before(layer, x, signal) if self.before else self._after(layer, x, signal)
            return y.view(self.targets, batch, length, y.size(-1))
        return y.unflatten(-1, (self.targets, -1)).permute(2, 0, 1, 3)

    def _rounded_once(self, layer: nn.Linear, x: Tensor, signal_input: Tensor) -> Tensor:
        """Projection plus signal in half precision, (B, T, K * out): the product is added to the signal, then rounded.

        Signals start at 0, and half precision would round small ones away if they were added to weights or outputs.
        """
        low = F.linear(signal_input.flatten(0, 1), self.down.flatten(0, 1))
        if self.targets == 1:  # without batched products, which are slow on a CPU
            up = self.up[0].t()
            signal = F.linear(low, layer.weight @ up if self.before else up)
        else:
            up = self.up.transpose(1, 2)
            up = layer.weight.unflatten(0, (self.targets, -1)) @ up if self.before else up
            signal = low.unflatten(1, (self.targets, -1)).transpose(0, 1) @ up.transpose(1, 2)
            signal = signal.transpose(0, 1).flatten(1)
        y = torch.addmm(signal, x.flatten(0, 1), layer.weight.t()).unflatten(0, x.shape[:2])
        bias = self.bias_of(layer)
        return y if bias is None else y + bias

    def _before(self, layer: nn.Linear, x: Tensor, signal: Tensor) -> Tensor:
        """Projects x + signal, (K, N, C), each target by its rows of the layer: (K, N, out)."""
        x = x.reshape(-1, self.width) + signal
        if self.targets == 1 or not is_plain(layer):
            # The layer projects each input for all targets; the diagonal has each target's own.
            return apply(layer, x).unflatten(-1, (self.targets, -1)).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        weight = layer.weight.unflatten(0, (self.targets, -1))
        bias = 0 if layer.bias is None else layer.bias.view(self.targets, 1, -1)
        return x @ weight.transpose(1, 2) + bias

    def _after(self, layer: nn.Linear, x: Tensor, signal: Tensor) -> Tensor:
        """Projects x and adds the signal, (K, N, out): (K, N, out)."""
        y = apply(layer, x)
        if self.bias is not None:
            y = y + self.bias
        return y.view(-1, self.targets, signal.size(-1)).transpose(0, 1) + signal


def project(layer: nn.Linear, x: Tensor, term: LevelSignal | None, signal_input: Tensor | None = None) -> Tensor:
    """The projection plus the pass's term, if any: (B, T, in) -> (B, T, out). The term reads x or `signal_input`."""
    if term is None:
        return apply(layer, x)
    return term.project(layer, x, signal_input).permute(1, 2, 0, 3).flatten(2)
