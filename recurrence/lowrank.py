"""A pass's own low-rank term on a projection of a shared block: `(W + up^T down) x + bias`.

Source: LoRA (arXiv:2106.09685), section 4.1.
"""

import torch
from torch import nn

from recurrence.signal import LevelSignal

# The projections of a block: name of the term -> the layer, and how many targets its weight stacks.
PROJECTIONS = {
    "qkv": ("self_attn.qkv", 3),
    "up": ("ffn.up", 1),
    "out": ("self_attn.out", 1),
    "down": ("ffn.down", 1),
    "cross_q": ("cross_attn.q", 1),
    "cross_kv": ("cross_attn.kv", 2),
    "cross_out": ("cross_attn.out", 1),
}


class LowRankTerm(LevelSignal):
    """A pass's term on stacked projections: a level signal with the same input as the projection, and a bias.

    It starts at 0: `up` and the bias are 0, `down` ~ N(0, 1 / in).

    Args:
        targets: K, how many projections are stacked.
        width, out_width: of each projection.
        rank: rank of each term.
        bias: whether there is a bias.
    """

    def __init__(self, targets: int, width: int, out_width: int, rank: int, bias: bool):
        super().__init__(targets, width, out_width, rank, before=False)
        nn.init.normal_(self.down, std=width**-0.5)
        self.bias = nn.Parameter(torch.zeros(targets * out_width)) if bias else None
