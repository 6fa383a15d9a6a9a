"""Intra-Layer Recurrence: LLaMA's layers, each run as often as a reuse map says.

A pass owns nothing. Block recurrence repeats the whole stack instead, and adds the stack's input again before each
repetition (`inject`) or, with an adapter, maps it and the state to the input of the repetition. The layer:

`x + attention(norm x)`, then `x + down(silu(gate n) * up n)` with n = norm x; RMSNorm, no biases. Its post-norm form
keeps the state bounded however many passes run: `norm(x + attention x)`, then `norm(x + ffn x)`.

Source: LLaMA (arXiv:2302.13971), section 2.2; Intra-Layer Recurrence (arXiv:2505.01855), sections 3 and 4.
Differs from the paper: it adds the stack's input at each repetition and leaves the first open; here, as in the code, it
is added from the second on. The paper mentions the adapter, which is Huginn's, and uses the sum.
Differs from LLaMA: the width of the FFN is an option. The published code of Intra-Layer Recurrence has 4 C instead of
8/3 C; the paper gives none.
"""

from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.attention import SelfAttention
from recurrence.block import Shape
from recurrence.loop import Loop
from recurrence.order import Order, block_count
from recurrence.parts import Dropout, Sublayer


class SwiGLU(nn.Module):
    """`down(silu(gate x) * up x)` without biases, gate and up by one GEMM.

    Source: Shazeer (arXiv:2002.05202), equation 6.

    Args:
        width, hidden_width: of x and between the products.
        dropout: rate on the hidden units.
    """

    def __init__(self, width: int, hidden_width: int, dropout: float):
        super().__init__()
        self.dropout = Dropout(dropout)
        self.gate_up = nn.Linear(width, 2 * hidden_width, bias=False)
        self.down = nn.Linear(hidden_width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.dropout(F.silu(gate) * up))


class LlamaBlock(nn.Module):
    """Self-attention and SwiGLU, with RMSNorms, which torch computes in float32 for half precision.

    Args:
        shape: sizes and rates.
        pre_norm: norm before each sublayer, as in LLaMA, instead of after its residual sum.
        relative: whether self-attention has relative positions, see :mod:`recurrence.relative`.
    """

    def __init__(self, shape: Shape, pre_norm: bool, relative: bool):
        super().__init__()
        self.sublayer = Sublayer(shape.dropout, pre_norm)
        self.self_attn = SelfAttention(shape.width, shape.heads, False, shape.attention_dropout, relative)
        self.ffn = SwiGLU(shape.width, shape.ffn_width, shape.activation_dropout)
        self.norms = nn.ModuleList(nn.RMSNorm(shape.width, shape.norm_eps) for _ in range(2))

    def forward(self, x: Tensor, **attention: Any) -> Tensor:
        """One pass: (B, T, C) -> (B, T, C); attention: see :class:`recurrence.attention.SelfAttention`."""
        x = self.sublayer(x, lambda n: self.self_attn(n, **attention), self.norms[0], torch.add)
        return self.sublayer(x, self.ffn, self.norms[1], torch.add)


class Adapter(nn.Module):
    """Maps the state and the injected input, side by side, to the input of a pass by one matrix without a bias.

    Source: Huginn (arXiv:2502.05171), section 3.2.
    Differs from Huginn: the first repetition has no adapter, as its state is the injected input.
    """

    def __init__(self, width: int):
        super().__init__()
        self.matrix = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, first: Tensor) -> Tensor:
        """State and injected input, (B, T, C) each -> (B, T, C)."""
        return self.matrix(torch.cat([x, first], dim=-1))


def llama_layers(
    shape: Shape,
    order: Order,
    inject: Collection[int] = (),
    adapter: bool = False,
    pre_norm: bool = True,
    relative: bool = False,
) -> Loop:
    """The stack: LLaMA's layers in the order of a reuse map or of block recurrence.

    Args:
        shape, pre_norm, relative: see :class:`LlamaBlock`.
        order, inject: see :class:`Loop`, which also has the errors.
        adapter: join the state and the injected input by an :class:`Adapter`, which all passes share, not by a sum.
    """
    blocks = [LlamaBlock(shape, pre_norm, relative) for _ in range(block_count(order))]
    return Loop(blocks, order, inject=inject, join=Adapter(shape.width) if adapter else torch.add)
