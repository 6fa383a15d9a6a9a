"""A stored block, and stacks of them as the papers build them.

Sublayers are applied as `norm(x + f(x))` (post-norm) or `x + f(norm(x))` (pre-norm), with dropout on f(x).
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.attention import CrossAttention, SelfAttention
from recurrence.linear import Linear
from recurrence.loop import Loop
from recurrence.order import Order
from recurrence.signal import LevelSignal, SignalConfig


@dataclass(frozen=True)
class StackConfig:
    """An encoder or a decoder.

    Args:
        width: C.
        ffn_width: hidden width of the FFN.
        heads: H, a divisor of C.
        order: one block index a pass.
        activation: applied to the FFN's hidden units.
        memory_width: width of what cross-attention reads; None for an encoder.
        bias: whether attention and FFN have biases.
        dropout, attention_dropout, activation_dropout: rates on sublayer outputs, attention weights, hidden units.
        pre_norm: norm before each sublayer instead of after its residual sum.
        norm_eps: LayerNorm's epsilon.
        norm_bias: whether LayerNorms have biases.
        norms: "sublayer": each sublayer of a stored block has a LayerNorm, shared by its passes; "block": one LayerNorm
            serves all sublayers of a block; "pass": each sublayer of each pass has one (RingFormer).
        ffn: "block": an FFN in every block; "shared": one FFN (with its LayerNorm) after each attention block; "none".
        signal: level signals of the passes; None for none.
        checkpointing: recompute passes in the backward pass.

    Raises:
        ValueError: where a value breaks its rule, by name.
    """

    width: int
    ffn_width: int
    heads: int
    order: Order
    activation: Callable[[Tensor], Tensor] = F.relu
    memory_width: int | None = None
    bias: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    pre_norm: bool = False
    norm_eps: float = 1e-5
    norm_bias: bool = True
    norms: str = "sublayer"
    ffn: str = "block"
    signal: SignalConfig | None = None
    checkpointing: bool = False

    def __post_init__(self):
        for name in ("width", "ffn_width", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be >= 1")
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads}: must divide width={self.width}")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be a rate within [0, 1]")
        if self.signal is not None:
            self.signal.check(self.width)
            if self.pre_norm and self.signal.attention == "before":
                raise ValueError("attention='before': a signal before the projection needs a post-norm block")


class FeedForward(nn.Module):
    """`W2 activation(W1 x)`, with the level signal before W1 or on its output."""

    def __init__(self, config: StackConfig):
        super().__init__()
        self.activation, self.dropout = config.activation, config.activation_dropout
        self.up = Linear(config.width, config.ffn_width, bias=config.bias)
        self.down = Linear(config.ffn_width, config.width, bias=config.bias)

    def forward(self, x: Tensor, raw: Tensor, signal: LevelSignal | None = None) -> Tensor:
        """x and raw: (B, T, C) -> (B, T, C)."""
        hidden = self.up(x) if signal is None else signal.project(self.up, x, raw)[0]
        return self.down(F.dropout(self.activation(hidden), self.dropout, self.training))


class PassParameters(nn.Module):
    """What one pass of RingFormer shares with no other: its LayerNorms and level signals."""

    def __init__(self, config: StackConfig, sublayers: int):
        super().__init__()
        self.norms = _norms(config, sublayers) if config.norms == "pass" else None
        self.qkv_signal = self.ffn_signal = None
        if config.signal is None:
            return
        width, rank = config.width, config.signal.rank
        if config.signal.attention is not None:
            self.qkv_signal = LevelSignal(3, width, width, rank, before=config.signal.attention == "before")
        if config.signal.ffn is not None:
            out = config.ffn_width
            self.ffn_signal = LevelSignal(1, width, out, rank, before=config.signal.ffn == "before")


class Block(nn.Module):
    """Self-attention, cross-attention where there is a memory, FFN; each part only where the configuration has it."""

    def __init__(self, config: StackConfig, attention: bool = True, ffn: bool = True):
        super().__init__()
        self.dropout, self.pre_norm = config.dropout, config.pre_norm
        shape = config.width, config.heads
        rest = config.bias, config.attention_dropout
        cross = attention and config.memory_width is not None
        self.self_attn = SelfAttention(*shape, *rest) if attention else None
        self.cross_attn = CrossAttention(*shape, config.memory_width, *rest) if cross else None
        self.ffn = FeedForward(config) if ffn else None
        self.sublayers = attention + cross + ffn
        self.norms = (
            None if config.norms == "pass" else _norms(config, 1 if config.norms == "block" else self.sublayers)
        )

    def forward(
        self,
        x: Tensor,
        own: PassParameters | None = None,
        context: Tensor | None = None,
        slot: Any | None = None,
        self_bias: Tensor | None = None,
        cross_bias: Tensor | None = None,
        causal: bool = False,
        record: list | None = None,
    ) -> Tensor:
        """One pass.

        Args:
            x: (B, T, C).
            own: parameters of this pass alone.
            context: (B, S, 2 C), projected memory, see :meth:`CrossAttention.project`.
            slot: incremental state of this pass.
            self_bias: added to the scores of self-attention, broadcastable to (B, H, T, T).
            cross_bias: added to the scores of cross-attention, broadcastable to (B, H, T, S).
            causal: each token sees itself and what stands before it.
            record: a list to which cross-attention's weights are appended, (B, T, S).

        Returns:
            (B, T, C).
        """
        # One LayerNorm a sublayer, or one that serves them all.
        norms = itertools.cycle(own.norms if self.norms is None else self.norms)
        qkv_signal, ffn_signal = (None, None) if own is None else (own.qkv_signal, own.ffn_signal)
        if self.self_attn is not None:
            x = self._residual(
                x, next(norms), lambda n: self.self_attn(n, x, qkv_signal, self_bias, causal=causal, slot=slot)
            )
        if self.cross_attn is not None:
            x = self._residual(x, next(norms), lambda n: self._cross_attend(n, context, cross_bias, record))
        if self.ffn is not None:
            x = self._feed_forward(x, next(norms), ffn_signal)
        return x

    def _residual(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        y = F.dropout(sublayer(norm(x) if self.pre_norm else x), self.dropout, self.training)
        return x + y if self.pre_norm else norm(x + y)

    def _cross_attend(self, x: Tensor, context: Tensor, bias: Tensor | None, record: list | None) -> Tensor:
        if record is not None:
            record.append(self.cross_attn.weights(x, context, bias))
        return self.cross_attn(x, context, bias)

    def _feed_forward(self, x: Tensor, norm: nn.Module, signal: LevelSignal | None) -> Tensor:
        if self.pre_norm and signal is not None and signal.before:
            # As in RingFormer's vision model: the signal joins the stream before the norm, the residual has none of it.
            y = self.ffn(norm(x + signal(x.flatten(0, 1)).view_as(x)), x)
            return x + F.dropout(y, self.dropout, self.training)
        return self._residual(x, norm, lambda n: self.ffn(n, x, signal))


def build_loop(config: StackConfig) -> Loop:
    """The stack that a configuration describes.

    Raises:
        ValueError: if the order names a block that no pass before it could have stored, see :class:`Loop`.
    """
    stored = 1 + max(config.order, default=-1)
    blocks = [Block(config, ffn=config.ffn == "block") for _ in range(stored)]
    order = config.order
    if config.ffn == "shared":
        # One more stored block, of nothing but the FFN, which runs after each of the others.
        order = tuple(which for pair in zip(order, [stored] * len(order)) for which in pair)
        blocks.append(Block(config, attention=False))
    own = None
    if config.norms == "pass" or config.signal is not None:
        own = [PassParameters(config, blocks[which].sublayers) for which in order]
    return Loop(blocks, order, own, config.checkpointing)


def _norms(config: StackConfig, count: int) -> nn.ModuleList:
    return nn.ModuleList(nn.LayerNorm(config.width, config.norm_eps, bias=config.norm_bias) for _ in range(count))
