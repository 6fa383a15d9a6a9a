"""LLaMA's block, and stacks of it in which layers run more than once.

`x + attention(norm x)`, then `x + down(silu(gate n) * up n)` with n = norm x; RMSNorm, no biases.

Source: LLaMA (arXiv:2302.13971), section 2.2; Intra-Layer Recurrence (arXiv:2505.01855), sections 3 and 4.
Differs from LLaMA: the FFN is as wide as a configuration says, 4 C in Intra-Layer Recurrence, not 8/3 C.
"""

from collections.abc import Collection
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.attention import SelfAttention
from recurrence.block import StackConfig
from recurrence.linear import apply
from recurrence.loop import Loop


class SwiGLU(nn.Module):
    """`down(silu(gate x) * up x)`, gate and up by one GEMM.

    Source: Shazeer (arXiv:2002.05202), equation 6.
    """

    def __init__(self, config: StackConfig):
        super().__init__()
        self.dropout = config.activation_dropout
        self.gate_up = nn.Linear(config.width, 2 * config.ffn_width, bias=False)
        self.down = nn.Linear(config.ffn_width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        gate, up = apply(self.gate_up, x).chunk(2, dim=-1)
        return apply(self.down, F.dropout(F.silu(gate) * up, self.dropout, self.training))


class LlamaBlock(nn.Module):
    """Self-attention and SwiGLU, each behind an RMSNorm, which torch computes in float32 for any narrower type.

    Of the configuration it takes sizes, dropout rates and the norm's epsilon; the rest of a block is LLaMA's.
    """

    def __init__(self, config: StackConfig):
        super().__init__()
        self.dropout = config.dropout
        self.self_attn = SelfAttention(config.width, config.heads, bias=False, dropout=config.attention_dropout)
        self.ffn = SwiGLU(config)
        self.norms = nn.ModuleList(nn.RMSNorm(config.width, config.norm_eps) for _ in range(2))

    def forward(
        self,
        x: Tensor,
        own: None = None,
        context: None = None,
        slot: Any | None = None,
        self_bias: Tensor | None = None,
        causal: bool = True,
        rotary: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """One pass.

        Args:
            x: (B, T, C).
            own, context: what a loop hands to blocks that have parameters of a pass or a memory; None here.
            slot: incremental state of this pass.
            self_bias, causal, rotary: see :class:`recurrence.attention.SelfAttention`.

        Returns:
            (B, T, C).
        """
        n = self.norms[0](x)
        y = self.self_attn(n, n, bias=self_bias, causal=causal, slot=slot, rotary=rotary)
        x = x + F.dropout(y, self.dropout, self.training)
        return x + F.dropout(self.ffn(self.norms[1](x)), self.dropout, self.training)


def build_llama_loop(config: StackConfig, inject: Collection[int] = ()) -> Loop:
    """LLaMA blocks in the configuration's order.

    Args:
        config: sizes and order.
        inject: blocks whose later passes get the input of their first pass added to theirs.

    Raises:
        ValueError: if the order skips a block, see :class:`Loop`.
    """
    blocks = [LlamaBlock(config) for _ in range(1 + max(config.order, default=-1))]
    return Loop(blocks, config.order, checkpointing=config.checkpointing, inject=inject)
