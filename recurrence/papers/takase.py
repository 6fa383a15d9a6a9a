"""Takase & Kiyono: the layers of a transformer, stored M times and run N times.

The complete layer is shared, including its LayerNorms. A pass owns nothing, unless Admin gives each of its residual
sums a vector (:func:`recurrence.admin.attach`). One stored layer is the paper's Universal row, N are its Vanilla row.
The orders are in :mod:`recurrence.order`.

Source: "Lessons on Parameter Sharing across Layers in Transformers" (arXiv:2104.06022), section 2 and Figure 2; the
layer is that of Vaswani et al. (arXiv:1706.03762), section 3.1.
"""

from collections.abc import Callable
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

    def run(self, x: Tensor, own: Pass, attend: Callable, cross_attend: Callable | None) -> Tensor:
        """`x <- LN(x + attention(x))`, `x <- LN(x + FFN(x))`, or pre-norm."""
        x = self.sublayer(x, attend, self.norms[0], own.join(0))
        if cross_attend is not None:
            x = self.sublayer(x, cross_attend, self.norms[1], own.join(1))
        return self.ffn_sublayer(x, self.ffn, self.norms[-1], own.join(-1))


def shared_layers(shape: Shape, order: Order, **parts: Any) -> Loop:
    """Stored layers in an order."""
    blocks = [TransformerBlock(shape, **parts) for _ in range(block_count(order))]
    return Loop(blocks, order, [Pass(blocks[which].sublayers) for which in order])
