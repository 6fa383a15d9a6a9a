"""What RingFormer's translation experiments compare it with, each as published.

Universal: one layer (:func:`recurrence.papers.takase.shared_layers`), before each pass of which a table of position and
depth is added to the stream (:func:`recurrence.position.depth_time`).
Vanilla: N layers, in each of which one LayerNorm serves all sublayers.
One Wide FFN: N attentions, and one FFN that all of them share; a decoder has none.

Source: RingFormer (arXiv:2502.13181), section 4.1, and its published code; Universal Transformer (arXiv:1807.03819);
One Wide Feedforward Is All You Need (arXiv:2309.01826), section 3.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.block import Block, Pass, Shape, Sublayer
from recurrence.ffn import FeedForward
from recurrence.loop import Loop


class OneNormBlock(Block):
    """A layer whose sublayers have one LayerNorm in common, or with `ffn=False` the attention of such a layer."""

    def __init__(self, shape: Shape, **parts: Any):
        super().__init__(shape, **parts)
        self.norms = shape.norms(1)

    def run(self, x: Tensor, own: Pass, attend: Callable, cross_attend: Callable | None) -> Tensor:
        """See :meth:`Block.run`."""
        x = self.sublayer(x, attend, self.norms[0], own.join(0))
        if cross_attend is not None:
            x = self.sublayer(x, cross_attend, self.norms[0], own.join(1))
        return x if self.ffn is None else self.ffn_sublayer(x, self.ffn, self.norms[0], own.join(-1))


class WideFFN(nn.Module):
    """The FFN that all attentions share, and its LayerNorm. It runs as a block of its own behind each of them."""

    self_attn = cross_attn = None
    sublayers = 1

    def __init__(
        self,
        shape: Shape,
        pre_norm: bool = False,
        activation: Callable[[Tensor], Tensor] = F.relu,
        bias: bool = True,
        ffn_dropout: float | None = None,
    ):
        super().__init__()
        self.ffn = FeedForward(shape.width, shape.ffn_width, activation, bias, shape.activation_dropout)
        self.ffn_sublayer = Sublayer(shape.dropout if ffn_dropout is None else ffn_dropout, pre_norm)
        self.norms = shape.norms(1)
        self.pre_norm = pre_norm

    def forward(self, x: Tensor, own: Pass, **attention: Any) -> Tensor:
        """(B, T, C) -> (B, T, C); what the attentions of the stack are told does not concern it."""
        return self.ffn_sublayer(x, self.ffn, self.norms[0], own.join(0))


def vanilla(shape: Shape, layers: int, **parts: Any) -> Loop:
    """Layers that share nothing.

    Args:
        shape: sizes and rates.
        layers: N.
        **parts: of :class:`recurrence.block.Block`.
    """
    blocks = [OneNormBlock(shape, **parts) for _ in range(layers)]
    return Loop(blocks, tuple(range(layers)), [Pass(block.sublayers) for block in blocks])


def one_wide_ffn(
    shape: Shape, layers: int, drop_path: Sequence[float] | None = None, memory_width: int | None = None, **parts: Any
) -> Loop:
    """An attention in each layer, and behind each of an encoder's the one FFN.

    Args:
        shape: sizes and rates.
        layers: N.
        drop_path: one rate per layer; None for none.
        memory_width: width of what cross-attention reads, in a decoder, which has no FFN; None for an encoder.
        **parts: of :class:`WideFFN`.
    """
    rates = drop_path or (None,) * layers
    blocks = [OneNormBlock(shape, memory_width=memory_width, ffn=False, **parts) for _ in range(layers)]
    own = [Pass(block.sublayers, rate) for block, rate in zip(blocks, rates)]
    if memory_width is not None:
        return Loop(blocks, tuple(range(layers)), own)
    order = tuple(which for layer in range(layers) for which in (layer, layers))
    own = [each for attention, rate in zip(own, rates) for each in (attention, Pass(1, rate))]
    return Loop([*blocks, WideFFN(shape, **parts)], order, own)
