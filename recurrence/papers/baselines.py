"""The baselines of RingFormer's translation experiments, each as published.

Universal: one layer (:func:`recurrence.papers.takase.shared_layers`); a table of position and depth is added to the
stream before each pass (:func:`recurrence.position.depth_time`).
Vanilla: N layers with one LayerNorm each, which all sublayers share.
One Wide FFN: N attention layers and a single FFN that they share; a decoder has no FFN.

Source: RingFormer (arXiv:2502.13181), section 4.1, and its published code; Universal Transformer (arXiv:1807.03819);
One Wide Feedforward Is All You Need (arXiv:2309.01826), section 2.2.
"""

from typing import Any

from torch import Tensor

from recurrence.block import Block, Pass, Shape
from recurrence.loop import Loop


class OneNormBlock(Block):
    """A layer whose sublayers share one LayerNorm, or only its attention or its FFN."""

    foldable = True

    def __init__(self, shape: Shape, **parts: Any):
        super().__init__(shape, **parts)
        self.norms = shape.norms(1)

    def forward(self, x: Tensor, own: Pass, cross: dict | None = None, **attention: Any) -> Tensor:
        """`x <- LN(x + attention(x))`, `x <- LN(x + FFN(x))`, or pre-norm; see :class:`recurrence.block.Block`."""
        norm, add, drop = self.norms[0], own.residuals, own.drop_path
        if self.self_attn is not None:
            x = self.sublayer(x, lambda n: self.self_attn(n, **attention), norm, add[0], drop)
        if self.cross_attn is not None:
            x = self.sublayer(x, lambda n: self.cross_attn(n, **cross), norm, add[1], drop)
        return x if self.ffn is None else self.ffn_sublayer(x, self.ffn, norm, add[-1], drop)


def vanilla(shape: Shape, layers: int, **parts: Any) -> Loop:
    """The stack of N layers that share nothing; other arguments and errors: see :mod:`recurrence.papers`."""
    blocks = [OneNormBlock(shape, **parts) for _ in range(layers)]
    return Loop(blocks, tuple(range(layers)), [Pass(block.sublayers) for block in blocks])


def one_wide_ffn(shape: Shape, layers: int, memory_width: int | None = None, **parts: Any) -> Loop:
    """The stack: one attention block per layer, each followed by the shared FFN in an encoder.

    Args:
        shape, parts: see :mod:`recurrence.papers`, which also has the errors.
        layers: N.
        memory_width: see :class:`recurrence.block.Block`.
    """
    blocks = [OneNormBlock(shape, memory_width=memory_width, ffn=False, **parts) for _ in range(layers)]
    order = tuple(range(layers))
    if memory_width is None:
        blocks.append(OneNormBlock(shape, self_attention=False, **parts))
        order = tuple(which for layer in order for which in (layer, layers))
    return Loop(blocks, order, [Pass(blocks[which].sublayers) for which in order])
