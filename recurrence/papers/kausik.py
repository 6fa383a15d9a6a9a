"""Kausik's recurrent transformer: layers that read a sequence with a state, one window of tokens after the other.

With B the block, causal within its input, and x_0, x_1, ... the input of a layer split into windows of w tokens:

    h_0 = B(x_0)        (., h_i) = B([h_{i-1}; x_i])        y_i = B(h_i)

The y are the layer's output. As B is causal, y_i = B(h_i) is also the first output of B([h_i; x_{i+1}]), which is how
Equation 2 has it; the paper calls the block T and counts from 1. When accumulating, with p_0 = x_0:

    (p_i, h_i) = B([p_{i-1} / 2 + h_{i-1}; p_{i-1} / 2 + x_i])        y_i = B(p_i / 2 + h_i), which is p_{i+1}

July's names: unit recurrence with forget (w = 1), block recurrence with forget (w > 1), and block recurrence with
accumulate.

Source: Kausik, recurrent transformers: Equations 1-3 of the June 2025 text and of its longer July version, and the
published code's language model (w = 1) and window variant.

Differs from the paper: when accumulating, Equation 5 of the July text adds half of the state before last (h_{i-2} / 2
in the indices above); here, as in the code, it is p_{i-1} / 2, half of the output y_{i-2}. Equation 6 ends with B(h);
here the end is no exception (see below). There is no option for either as printed: Equation 5 begins with an h_0 before
the first window, which the text does not define (0 would fit), and the printed results come from the published code.

Differs from the published code: the formula holds for all lengths, while the code skips the recurrence for 1 and 2
tokens. When accumulating, the last window is no exception; the code has B(h) there, so that a token's output would
depend on whether more tokens follow. Queries, keys and values of the input are computed for all windows at once, before
the scan, because they depend on no state, and so are the outputs y, after it, because no state depends on them. When
accumulating, neither holds: the scan computes both, and only the last y is a call of its own.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.attention import SelfAttention
from recurrence.block import Shape
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.papers.scan import Dropouts, scan
from recurrence.papers.scan_step import Spec, Weights
from recurrence.papers.streaming import LayerState, StackState
from recurrence.parts import Dropout, FeedForward, Sublayer
from recurrence.private_torch import is_plain, is_transformed, is_unchanged


class RecurrentBlock(nn.Module):
    """One layer: a pre-norm block without biases, applied along the sequence.

    Args:
        shape: sizes and rates.
        activation: applied to the FFN's hidden units.
        window: w, tokens read at a time.
        accumulate: add half of y_{i-2}, the output two windows back, to the input.

    Raises:
        FieldError: if the window is below 1.
    """

    def __init__(
        self,
        shape: Shape,
        activation: Callable[[Tensor], Tensor] = F.gelu,
        window: int = 1,
        accumulate: bool = False,
    ):
        if window < 1:
            raise FieldError("window", window, "must be >= 1")
        super().__init__()
        self.window, self.accumulate, self.width = window, accumulate, shape.width
        self.sublayer = Sublayer(shape.dropout, pre_norm=True)
        self.self_attn = SelfAttention(shape.width, shape.heads, False, shape.attention_dropout)
        self.ffn = FeedForward(shape.width, shape.ffn_width, activation, False, shape.activation_dropout)
        self.norms = shape.norms(2, bias=False)

    def forward(
        self,
        x: Tensor,
        slot: LayerState | None = None,
        padding: Tensor | None = None,
        window: int | None = None,
    ) -> Tensor:
        """Reads all tokens of a text or, with a slot, its next tokens: (B, T, C) -> (B, T, C), undefined at padding.

        Args:
            x: the input.
            slot: state of this layer.
            padding: (B, T) bool; None if all texts begin at the first column.
            window: tokens read at a time in this call; None for the block's own.
        """
        if slot is not None:
            return slot.read(self, x, padding)
        if padding is not None:  # every text must begin at the first column of its windows
            leading, columns = padding.cumprod(1).sum(1, keepdim=True), torch.arange(x.size(1), device=x.device)
            return _columns(self.forward(_columns(x, columns + leading), window=window), columns - leading)
        length, window = x.size(1), window or self.window
        # The padding of the last window comes after all tokens, so no token sees it.
        windows = F.pad(x, (0, 0, 0, -length % window)).unflatten(1, (-1, window)).transpose(0, 1)
        states = self.states(windows)
        if self.accumulate:
            p, h = states[-1].chunk(2, dim=1)
            y = torch.cat([states[1:, :, :window], self.causal_block(p / 2 + h)[None]])
        else:
            y = self.causal_block(states.flatten(0, 1)).view_as(states)
        return y.transpose(0, 1).flatten(1, 2)[:, :length]

    def states(self, windows: Tensor) -> Tensor:
        """h_i of every window, (N, B, w, C) -> the same; when accumulating, [p_i, h_i], (N, B, 2 w, C)."""
        h = self.causal_block(windows[0])
        first = torch.cat([windows[0], h], dim=1) if self.accumulate else h
        rest = windows[1:].contiguous()
        if not len(rest):
            return first[None]
        scans = self._is_plain() and not is_transformed()
        return self._scan(first, rest) if scans else self._states_one_by_one(first, rest)

    def _states_one_by_one(self, first: Tensor, rest: Tensor) -> Tensor:
        """The recurrence as defined, one call of the block per window."""
        states = [first]
        for x in rest:
            if self.accumulate:
                p, h = states[-1].chunk(2, dim=1)
                states.append(self.causal_block(torch.cat([p / 2 + h, p / 2 + x], dim=1)))
            else:
                states.append(self.causal_block(torch.cat([states[-1], x], dim=1))[:, x.size(1) :])
        return torch.stack(states)

    def _is_plain(self) -> bool:
        """Whether the scan, which reads the weights directly, equals calling the modules."""
        attention, ffn, sublayer = self.self_attn, self.ffn, self.sublayer
        parts = (attention, SelfAttention), (ffn, FeedForward), (sublayer, Sublayer)
        if not all(is_unchanged(*part) for part in parts):
            return False
        layers, dropouts = (attention.qkv, attention.out, ffn.up, ffn.down), self._dropouts()
        plain = all(map(is_plain, layers)) and all(is_plain(norm, nn.LayerNorm) for norm in self.norms)
        return plain and all(is_unchanged(dropout, Dropout) for dropout in dropouts)

    def _dropouts(self) -> Dropouts:
        return Dropouts(self.self_attn.dropout, self.ffn.dropout, self.sublayer.dropout)

    def _scan(self, first: Tensor, rest: Tensor) -> Tensor:
        """The same states by :func:`recurrence.papers.scan.scan`."""
        attention, ffn, (norm1, norm2) = self.self_attn, self.ffn, self.norms
        spec = Spec(rest.size(2), attention.heads, self.accumulate, norm1.eps, ffn.activation)
        if self.accumulate:
            projection, qkv = attention.qkv.weight, None
        else:
            projection, qkv = attention.qkv.weight[self.width :], attention.qkv(norm1(rest))
        weights = Weights(norm1.weight, projection, attention.out.weight, norm2.weight, ffn.up.weight, ffn.down.weight)
        return scan(spec, weights, self._dropouts(), first, rest, qkv)

    def causal_block(self, x: Tensor) -> Tensor:
        """B, causal within its input: (B, T, C) -> (B, T, C)."""
        normed = self.norms[0](x)
        alone = x.size(1) == 1 and is_unchanged(self.self_attn, SelfAttention)
        y = self._attend_to_itself(normed) if alone else self.self_attn(normed, causal=True)
        return self.feed_forward(x, y)

    def _attend_to_itself(self, normed: Tensor) -> Tensor:
        """Attention of a single token, (B, 1, C), which is its value, with dropout per head."""
        attention = self.self_attn
        if is_plain(attention.qkv):
            value = F.linear(normed, attention.qkv.weight[2 * self.width :])
        else:
            value = attention.qkv(normed)[..., 2 * self.width :]
        if attention.dropout.training and attention.dropout.p:
            of_heads = attention.dropout(value.new_ones(*value.shape[:2], attention.heads))
            value = (value.unflatten(-1, (attention.heads, -1)) * of_heads.unsqueeze(-1)).flatten(-2)
        return attention.out(value)

    def feed_forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The rest of the block, from its input x and the output y of attention: (B, T, C) -> (B, T, C)."""
        x = x + self.sublayer.dropout(y)
        return self.sublayer(x, self.ffn, self.norms[1], torch.add)


class RecurrentStack(nn.Module):
    """Recurrent layers: each scans the complete output of the one before.

    Args:
        layers: N.
        shape, activation, window, accumulate: see :class:`RecurrentBlock`.
        window_range: in training, draw the window of each batch uniformly from this range, both ends included (July
            text, "Block recurrence with forget"); None for w always.

    Raises:
        FieldError: if a value breaks its rule.
    """

    def __init__(
        self,
        shape: Shape,
        layers: int,
        activation: Callable[[Tensor], Tensor] = F.gelu,
        window: int = 1,
        accumulate: bool = False,
        window_range: tuple[int, int] | None = None,
    ):
        super().__init__()
        if window_range is not None and not 1 <= window_range[0] <= window_range[1]:
            raise FieldError("window_range", ",".join(map(str, window_range)), "must be A,B with 1 <= A <= B")
        self.window_range = window_range
        blocks = [RecurrentBlock(shape, activation, window, accumulate) for _ in range(layers)]
        self.loop = Loop(blocks, tuple(range(layers)))
        self.norm = nn.LayerNorm(shape.width, shape.norm_eps, bias=False)

    def new_state(self, passes: int | None = None) -> StackState:
        """The decoding state of a new text; `passes` is for other stacks."""
        return StackState(self.loop.passes)

    def forward(
        self,
        x: Tensor,
        padding: Tensor | None = None,
        state: StackState | None = None,
        passes: int | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """Runs all layers; see :meth:`recurrence.causal.CausalStack.forward`."""
        if state is not None:
            padding = None if padding is None else padding[:, -x.size(1) :]
            return self.loop(x, passes, per_pass=dict(slot=state.layers), padding=padding, states=states)
        leading = padding if padding is not None and padding[:, 0].any() else None
        return self.loop(x, passes, window=self._drawn_window(), padding=leading, states=states)

    def finish(self, x: Tensor) -> Tensor:
        """From the output of the last layer to that of the stack: (B, T, C) -> (B, T, C)."""
        return self.norm(x)

    def _drawn_window(self) -> int | None:
        """Drawn with torch's CPU generator, which fairseq seeds for each update, so a resumed run draws the same."""
        if self.window_range is None or not self.training:
            return None
        low, high = self.window_range
        return int(torch.randint(low, high + 1, (), device="cpu"))


def _columns(x: Tensor, columns: Tensor) -> Tensor:
    """x[b, columns[b, t]] for each b and t, with columns clamped to 0 .. T - 1: (B, T, C), (B, T) -> (B, T, C)."""
    return x.take_along_dim(columns.clamp(0, x.size(1) - 1)[..., None], dim=1)
