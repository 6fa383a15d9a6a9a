"""A pass's own low-rank term on every projection of a shared block: `(W + up^T down) x + bias`.

With LayerNorms and biases of each pass, terms of full rank make every pass any layer there is; of a low rank, most of a
layer for a fraction of its parameters.

Source: Relaxed Recursive Transformers (arXiv:2410.20672), sections 3.2 and 3.3.
Differs from the paper: Q, K and V have a term each, so do keys and values of cross-attention; biases are of the pass.
"""

import torch
from torch import Tensor, nn

from recurrence.linear import apply
from recurrence.signal import LevelSignal

# Each projection of a block, how many targets it stacks, and where a pass keeps its term.
TERMS = {
    "self_attn.qkv": (3, "qkv_signal"),
    "self_attn.out": (1, "terms.out"),
    "cross_attn.q": (1, "terms.cross_q"),
    "cross_attn.kv": (2, "terms.cross_kv"),
    "cross_attn.out": (1, "terms.cross_out"),
    "ffn.up": (1, "ffn_signal"),
    "ffn.down": (1, "terms.down"),
}


class LowRankTerm(LevelSignal):
    """What one pass adds to stacked projections: a level signal that reads what they read, and a bias.

    At initialisation it is 0: `up` and the bias are 0, `down` ~ N(0, 1 / in).

    Args:
        targets: K, how many projections are stacked.
        width, out_width: of each projection.
        rank: of each term.
        bias: whether it has one.
    """

    def __init__(self, targets: int, width: int, out_width: int, rank: int, bias: bool):
        super().__init__(targets, width, out_width, rank, before=False)
        nn.init.normal_(self.down, std=width**-0.5)
        self.bias = nn.Parameter(torch.zeros(targets * out_width)) if bias else None

    def project(self, layer: nn.Linear, x: Tensor, raw: Tensor) -> Tensor:
        """See :meth:`LevelSignal.project`; it reads x, wherever the norm stands."""
        return super().project(layer, x, x)


def project(layer: nn.Linear, x: Tensor, term: LevelSignal | None, raw: Tensor | None = None) -> Tensor:
    """The projection with what the pass adds, if it adds anything: (B, T, in) -> (B, T, out).

    raw is what a level signal reads, where it is not x.
    """
    if term is None:
        return apply(layer, x)
    return term.project(layer, x, x if raw is None else raw).permute(1, 2, 0, 3).flatten(2)
