"""A stored block, and stacks of them as the papers build them.

Sublayers are applied as `norm(x + f(x))` (post-norm) or `x + f(norm(x))` (pre-norm), with dropout on f(x).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.admin import Admin
from recurrence.attention import CrossAttention, SelfAttention
from recurrence.linear import apply
from recurrence.loop import Loop
from recurrence.lowrank import LowRankTerm, project
from recurrence.order import Order
from recurrence.residual import Coefficients, DropPath, NonlinearProjection, join
from recurrence.signal import LevelSignal, SignalConfig
from recurrence.slicing import SliceConfig


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
        ffn_dropout: rate on the FFN's output where it differs from the other sublayers'; None where it does not.
        drop_path: one rate a pass, at which training drops a sublayer's output for whole samples; () for none.
        pre_norm: norm before each sublayer instead of after its residual sum.
        norm_eps: LayerNorm's epsilon.
        norm_bias: whether LayerNorms have biases.
        norms: "sublayer": each sublayer of a stored block has a LayerNorm, shared by its passes; "block": one LayerNorm
            serves all sublayers of a block; "pass": each sublayer of each pass has one (RingFormer).
        ffn: "block": an FFN in every block; "shared": one FFN (with its LayerNorm) after each attention block; "none".
        signal: level signals of the passes; None for none.
        learned_residuals: whether the residual sums have learnable coefficients, stored with the block (SReT's LRC).
        admin: whether the residual sums of each pass have Admin's vectors; post-norm only.
        projection_width: hidden width of a non-linear projection behind each pass (SReT's NLL); None for none.
        projection_every: behind how many passes there is one; a divisor of their number.
        slices: the slices of each pass's self-attention; None for global attention.
        token_mixing: (N, hidden width) of an MLP over the N tokens in the place of self-attention; None for attention.
        residual_rank: rank of the term that each pass adds to every projection of its block; None for no terms.
            Biases are of the pass then, and so must be the norms.
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
    ffn_dropout: float | None = None
    drop_path: tuple[float, ...] = ()
    pre_norm: bool = False
    norm_eps: float = 1e-5
    norm_bias: bool = True
    norms: str = "sublayer"
    ffn: str = "block"
    signal: SignalConfig | None = None
    learned_residuals: bool = False
    admin: bool = False
    projection_width: int | None = None
    projection_every: int = 1
    slices: SliceConfig | None = None
    token_mixing: tuple[int, int] | None = None
    residual_rank: int | None = None
    checkpointing: bool = False

    def __post_init__(self):
        for name in ("width", "ffn_width", "heads", "projection_width"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: must be >= 1")
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads}: must divide width={self.width}")
        for name in ("dropout", "attention_dropout", "activation_dropout", "ffn_dropout", "drop_path"):
            value = getattr(self, name)
            rates = value if isinstance(value, tuple) else () if value is None else (value,)
            if not all(0 <= rate <= 1 for rate in rates):
                raise ValueError(f"{name}={value}: must be a rate within [0, 1]")
        if self.drop_path and len(self.drop_path) != len(self.order):
            raise ValueError(f"drop_path={self.drop_path}: needs one rate for each of the {len(self.order)} passes")
        if self.projection_every < 1 or len(self.order) % self.projection_every:
            raise ValueError(f"projection_every={self.projection_every}: must divide the {len(self.order)} passes")
        if self.slices is not None and len(self.slices.groups) != len(self.order):
            raise ValueError(f"groups={self.slices.groups}: needs one for each of the {len(self.order)} passes")
        if self.admin and (self.pre_norm or self.learned_residuals):
            reason = "pre_norm" if self.pre_norm else "learned_residuals"
            raise ValueError(f"admin={self.admin}: does not go with {reason}={getattr(self, reason)}")
        if self.signal is not None:
            self.signal.check(self.width)
            for name in ("attention", "cross_attention"):
                if self.pre_norm and getattr(self.signal, name) == "before":
                    raise ValueError(f"{name}='before': a signal before the projection needs a post-norm block")
        if self.residual_rank is not None:
            self._check_residual_rank()

    def _check_residual_rank(self) -> None:
        if not 1 <= self.residual_rank <= self.width:
            raise ValueError(f"residual_rank={self.residual_rank}: must be >= 1 and <= width={self.width}")
        if self.norms != "pass" or self.signal or self.token_mixing or self.ffn != "block":
            raise ValueError(
                f"residual_rank={self.residual_rank}: needs LayerNorms of each pass and blocks of attention and FFN, "
                "and goes with no level signal"
            )

    @property
    def sublayers(self) -> int:
        """Residual sums of one pass; an FFN that follows every attention block counts to its pass."""
        return 1 + (self.memory_width is not None) + (self.ffn != "none")


class FeedForward(nn.Module):
    """`W2 activation(W1 x)`, with the level signal before W1 or on its output."""

    def __init__(self, config: StackConfig):
        super().__init__()
        self.activation, self.dropout = config.activation, config.activation_dropout
        self.up = nn.Linear(config.width, config.ffn_width, bias=config.bias)
        self.down = nn.Linear(config.ffn_width, config.width, bias=config.bias)

    def forward(
        self, x: Tensor, raw: Tensor, signal: LevelSignal | None = None, down: LowRankTerm | None = None
    ) -> Tensor:
        """x and raw: (B, T, C) -> (B, T, C); down is what the pass adds to W2."""
        hidden = apply(self.up, x) if signal is None else signal.project(self.up, x, raw)[0]
        return project(self.down, F.dropout(self.activation(hidden), self.dropout, self.training), down)


class TokenMixing(nn.Module):
    """An MLP over the tokens, the same for every feature.

    Source: MLP-Mixer (arXiv:2105.01601), section 2.
    """

    def __init__(self, config: StackConfig):
        super().__init__()
        tokens, hidden = config.token_mixing
        self.activation, self.dropout = config.activation, config.activation_dropout
        self.up = nn.Linear(tokens, hidden, bias=config.bias)
        self.down = nn.Linear(hidden, tokens, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) -> (B, N, C)."""
        hidden = F.dropout(self.activation(apply(self.up, x.transpose(1, 2))), self.dropout, self.training)
        return apply(self.down, hidden).transpose(1, 2)


class PassParameters(nn.Module):
    """What one pass shares with no other.

    RingFormer's LayerNorms and level signals; Admin's vectors; SReT's slices and non-linear projection; the drop path
    of its depth; a low-rank term on each projection, that on Q, K and V and that on W1 in the place of the signals.
    """

    def __init__(self, config: StackConfig, index: int, sublayers: int):
        super().__init__()
        self.norms = _norms(config, sublayers) if config.norms == "pass" else None
        self.residuals = nn.ModuleList(Admin(config.width) for _ in range(sublayers)) if config.admin else None
        self.drop_path = DropPath(config.drop_path[index]) if config.drop_path else None
        self.slices = None if config.slices is None else config.slices.of_pass(index)
        self.projection = None
        if config.projection_width is not None and not (index + 1) % config.projection_every:
            self.projection = NonlinearProjection(
                config.width, config.projection_width, config.norm_eps, config.learned_residuals
            )
        self.qkv_signal = self.ffn_signal = self.terms = None
        self.cross_q_signal = self.cross_kv_signal = None
        if config.residual_rank is not None:
            self._add_terms(config)
        if config.signal is None:
            return
        width, signal = config.width, config.signal
        if signal.attention is not None:
            self.qkv_signal = LevelSignal(3, width, width, signal.rank, signal.attention == "before", signal.init)
        if signal.cross_attention is not None and config.memory_width is not None:
            rest = signal.rank, signal.cross_attention == "before", signal.init
            self.cross_q_signal = LevelSignal(1, width, width, *rest)
            self.cross_kv_signal = LevelSignal(2, config.memory_width, width, *rest)
        if signal.ffn is not None:
            out = config.ffn_width
            self.ffn_signal = LevelSignal(1, width, out, signal.rank, signal.ffn == "before", signal.init)

    def _add_terms(self, config: StackConfig) -> None:
        width, ffn_width = config.width, config.ffn_width
        rest = config.residual_rank, config.bias
        self.qkv_signal = LowRankTerm(3, width, width, *rest)
        self.ffn_signal = LowRankTerm(1, width, ffn_width, *rest)
        self.terms = nn.ModuleDict(
            dict(out=LowRankTerm(1, width, width, *rest), down=LowRankTerm(1, ffn_width, width, *rest))
        )
        if config.memory_width is not None:
            self.terms["cross_q"] = LowRankTerm(1, width, width, *rest)
            self.terms["cross_kv"] = LowRankTerm(2, config.memory_width, width, *rest)
            self.terms["cross_out"] = LowRankTerm(1, width, width, *rest)

    def term(self, name: str) -> LevelSignal | None:
        """What the pass adds to a projection: "out", "down", "cross_q", "cross_kv" or "cross_out"."""
        if self.terms is None:
            return getattr(self, f"{name}_signal", None)
        return self.terms[name]


class Block(nn.Module):
    """Self-attention, cross-attention where there is a memory, FFN; each part only where the configuration has it."""

    def __init__(self, config: StackConfig, attention: bool = True, ffn: bool = True):
        super().__init__()
        self.dropout, self.pre_norm = config.dropout, config.pre_norm
        self.ffn_dropout = config.dropout if config.ffn_dropout is None else config.ffn_dropout
        shape = config.width, config.heads
        rest = config.bias, config.attention_dropout
        cross = attention and config.memory_width is not None
        mixing = attention and config.token_mixing is not None
        self.mixing = TokenMixing(config) if mixing else None
        self.self_attn = SelfAttention(*shape, *rest) if attention and not mixing else None
        self.cross_attn = CrossAttention(*shape, config.memory_width, *rest) if cross else None
        self.ffn = FeedForward(config) if ffn else None
        self.sublayers = attention + cross + ffn
        self.norms = (
            None if config.norms == "pass" else _norms(config, 1 if config.norms == "block" else self.sublayers)
        )
        self.residuals = None
        if config.learned_residuals:
            self.residuals = nn.ModuleList(Coefficients() for _ in range(self.sublayers))

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
        qkv_signal, slices = (None, None) if own is None else (own.qkv_signal, own.slices)
        if self.mixing is not None:
            x = self._sublayer(x, 0, own, self.mixing)
        if self.self_attn is not None:
            raw = x

            def attend(n: Tensor) -> Tensor:
                out = None if own is None else own.term("out")
                return self.self_attn(n, raw, qkv_signal, self_bias, causal=causal, slot=slot, out=out)

            x = self._sublayer(x, 0, own, attend if slices is None else lambda n: slices(n, attend))
        if self.cross_attn is not None:
            stream = x
            x = self._sublayer(x, 1, own, lambda n: self._cross_attend(n, stream, own, context, cross_bias, record))
        if self.ffn is not None:
            x = self._feed_forward(x, own)
        return x if own is None or own.projection is None else own.projection(x)

    def _sublayer(self, x: Tensor, which: int, own: PassParameters | None, f: Callable[[Tensor], Tensor]) -> Tensor:
        norm = self.norm(which, own)
        if self.pre_norm:
            return self._join(x, f(norm(x)), which, own)
        return norm(self._join(x, f(x), which, own))

    def _feed_forward(self, x: Tensor, own: PassParameters | None = None) -> Tensor:
        which, signal = self.sublayers - 1, None if own is None else own.ffn_signal
        if self.pre_norm and signal is not None and signal.before:
            # As in RingFormer's vision model: the signal joins the stream before the norm, the residual has none of it.
            signalled = x + signal(x.flatten(0, 1)).view_as(x)
            return self._join(x, self.ffn(self.norm(which, own)(signalled), x), which, own)
        down = None if own is None else own.term("down")
        return self._sublayer(x, which, own, lambda n: self.ffn(n, x, signal, down))

    def norm(self, which: int, own: PassParameters | None) -> nn.Module:
        """One LayerNorm a sublayer, or one that serves them all; of the block or of the pass."""
        norms = own.norms if self.norms is None else self.norms
        return norms[which % len(norms)]

    def _join(self, x: Tensor, y: Tensor, which: int, own: PassParameters | None) -> Tensor:
        """The residual sum of the stream and what a sublayer made of it."""
        is_ffn = self.ffn is not None and which == self.sublayers - 1
        y = F.dropout(y, self.ffn_dropout if is_ffn else self.dropout, self.training)
        if own is not None and own.drop_path is not None:
            y = own.drop_path(y)
        residuals = self.residuals if own is None or own.residuals is None else own.residuals
        return join(x, y, None if residuals is None else residuals[which])

    def _cross_attend(
        self,
        x: Tensor,
        raw: Tensor,
        own: PassParameters | None,
        context: Tensor,
        bias: Tensor | None,
        record: list | None,
    ) -> Tensor:
        q, out = (None, None) if own is None else (own.term("cross_q"), own.term("cross_out"))
        if record is not None:
            record.append(self.cross_attn.weights(x, context, bias, q, raw))
        return self.cross_attn(x, context, bias, q, out, raw)


def build_loop(config: StackConfig) -> Loop:
    """The stack that a configuration describes.

    Raises:
        ValueError: if the order names a block that no pass before it could have stored, see :class:`Loop`.
    """
    stored = 1 + max(config.order, default=-1)
    bare = config if config.residual_rank is None else replace(config, bias=False)
    blocks = [Block(bare, ffn=config.ffn == "block") for _ in range(stored)]
    order = config.order
    if config.ffn == "shared":
        # One more stored block, of nothing but the FFN, which runs after each of the others.
        order = tuple(which for pair in zip(order, [stored] * len(order)) for which in pair)
        blocks.append(Block(config, attention=False))
    own = None
    unique = config.norms == "pass" or config.signal or config.admin
    if unique or config.projection_width or config.slices or config.drop_path:
        runs = len(order) // len(config.order)
        own = [PassParameters(config, index // runs, blocks[which].sublayers) for index, which in enumerate(order)]
    return Loop(blocks, order, own, config.checkpointing)


def _norms(config: StackConfig, count: int) -> nn.ModuleList:
    return nn.ModuleList(nn.LayerNorm(config.width, config.norm_eps, bias=config.norm_bias) for _ in range(count))
