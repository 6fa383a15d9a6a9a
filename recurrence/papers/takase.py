"""Takase & Kiyono: the layers of a transformer, stored M times and run N times.

The complete layer is shared, including its LayerNorms. A pass owns nothing, unless Admin gives each of its residual
sums a vector (:func:`recurrence.papers.admin.attach`). One stored layer is the paper's Universal row, N are its Vanilla
row. The orders are in :mod:`recurrence.order`.

Source: "Lessons on Parameter Sharing across Layers in Transformers" (arXiv:2104.06022), section 2 and Figure 2; the
layer is that of Vaswani et al. (arXiv:1706.03762), section 3.1.
"""

from typing import Any

from torch import Tensor

from recurrence.block import Block, Pass, Shape
from recurrence.loop import Loop
from recurrence.order import Order, block_count


class TransformerBlock(Block):
    """A transformer layer with one LayerNorm per sublayer; with or without `norm_bias`."""

    foldable = True

    def __init__(self, shape: Shape, norm_bias: bool = True, **parts: Any):
        super().__init__(shape, **parts)
        self.norms = shape.norms(self.sublayers, norm_bias)

    def forward(self, x: Tensor, own: Pass, cross: dict | None = None, **attention: Any) -> Tensor:
        """`x <- LN(x + attention(x))`, `x <- LN(x + FFN(x))`, or pre-norm; see :class:`recurrence.block.Block`."""
        norms, add, drop = self.norms, own.residuals, own.drop_path
        x = self.sublayer(x, lambda n: self.self_attn(n, **attention), norms[0], add[0], drop)
        if self.cross_attn is not None:
            x = self.sublayer(x, lambda n: self.cross_attn(n, **cross), norms[1], add[1], drop)
        return self.ffn_sublayer(x, self.ffn, norms[-1], add[-1], drop)


def shared_layers(shape: Shape, order: Order, **parts: Any) -> Loop:
    """The stack: stored layers in an order; arguments and errors: see :mod:`recurrence.papers`."""
    blocks = [TransformerBlock(shape, **parts) for _ in range(block_count(order))]
    return Loop(blocks, order, [Pass(blocks[which].sublayers) for which in order])
