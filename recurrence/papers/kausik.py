"""Kausik's recurrent transformer: layers that read a sequence with a state, one window of tokens after the other.

With B the block, causal within its input, and x_0, x_1, ... the input of a layer split into windows of w tokens:

    h_0 = B(x_0)        (., h_i) = B([h_{i-1}; x_i])        y_i = B(h_i)

The y are the layer's output. Accumulating, with p_0 = x_0:

    (p_i, h_i) = B([p_{i-1} / 2 + h_{i-1}; p_{i-1} / 2 + x_i])        y_i = B(p_i / 2 + h_i), which is p_{i+1}

Source: Kausik, recurrent transformers: Equations 1-3 of the June 2025 text and of its longer July version, and the
published code's language model (w = 1) and window variant.

Differs from the paper: when accumulating, Equations 5 and 6 of the July text carry the state before last, h_{i-1} / 2,
and end with B(h); here, as in the code, it is always the last output, p_{i-1} / 2.

Differs from the published code: the formula holds for all lengths, while the code skips the recurrence for 1 and 2
tokens. When accumulating, the last window is no exception; the code has B(h) there, so that a token's output would
depend on whether more tokens follow. The outputs y are one call after the scan, and queries, keys and values of the
input are one call before it, because neither depends on the states in between.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.attention import SelfAttention, padding_bias
from recurrence.block import Shape, Sublayer
from recurrence.dropout import dropout
from recurrence.errors import FieldError
from recurrence.ffn import FeedForward
from recurrence.linear import apply, is_plain, is_transformed, linear
from recurrence.loop import Loop
from recurrence.scan import Spec, Weights, scan


class RecurrentBlock(nn.Module):
    """One layer: a pre-norm block without biases, applied along the sequence.

    Args:
        shape: sizes and rates.
        activation: applied to the FFN's hidden units.
        window: w, tokens read at a time.
        accumulate: add half of the output before last to the input.

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
        slot: "Slot | None" = None,
        padding: Tensor | None = None,
        window: int | None = None,
    ) -> Tensor:
        """Reads all tokens of a text or, with a slot, the tokens that follow those it has seen.

        Args:
            x: (B, T, C).
            slot: state of this layer.
            padding: (B, T) bool, with a slot only; without one, texts must begin at the first column.
            window: tokens read at a time in this call; None for the block's own.

        Returns:
            (B, T, C); undefined at padding.
        """
        if slot is not None:
            tokens = x.unbind(1)
            skipped = [None] * len(tokens) if padding is None else padding.unbind(1)
            return torch.stack([self._read(*each, slot) for each in zip(tokens, skipped)], dim=1)
        length, window = x.size(1), window or self.window
        # The padding of the last window comes after all tokens, so no token sees it.
        windows = F.pad(x, (0, 0, 0, -length % window)).unflatten(1, (-1, window)).transpose(0, 1)
        states = self.states(windows)
        if self.accumulate:
            p, h = states[-1].chunk(2, dim=1)
            y = torch.cat([states[1:, :, :window], self.alone(p / 2 + h)[None]])
        else:
            y = self.alone(states.flatten(0, 1)).view_as(states)
        return y.transpose(0, 1).flatten(1, 2)[:, :length]

    def states(self, windows: Tensor) -> Tensor:
        """h_i of every window, (N, B, w, C) -> the same; when accumulating, [p_i, h_i], (N, B, 2 w, C)."""
        first, rest = windows[0], windows[1:].contiguous()
        first = torch.cat([first, self.alone(first)], dim=1) if self.accumulate else self.alone(first)
        if not len(rest):
            return first[None]
        if not self._is_plain() or is_transformed():
            return self._states_one_by_one(first, rest)
        attention, norm = self.self_attn, self.norms[0]
        rates = (self.sublayer.dropout, attention.dropout, self.ffn.dropout) if self.training else ()
        spec = Spec(windows.size(2), attention.heads, self.accumulate, norm.eps, self.ffn.activation, *rates)
        inner = attention.qkv.weight if self.accumulate else attention.qkv.weight[self.width :]
        ffn = self.ffn.up.weight, self.ffn.down.weight
        weights = Weights(norm.weight, inner, attention.out.weight, self.norms[1].weight, *ffn)
        return scan(spec, weights, first, rest, None if self.accumulate else apply(attention.qkv, norm(rest)))

    def _is_plain(self) -> bool:
        """Whether the scan, which reads the weights directly, equals calling the layers."""
        attention, ffn = self.self_attn, self.ffn
        layers = attention.qkv, attention.out, ffn.up, ffn.down
        return all(map(is_plain, layers)) and all(is_plain(norm, nn.LayerNorm) for norm in self.norms)

    def _states_one_by_one(self, first: Tensor, rest: Tensor) -> Tensor:
        """The recurrence as defined, one call of the block per step; see :mod:`recurrence.scan`."""
        states = [first]
        for x in rest:
            if self.accumulate:
                p, h = states[-1].chunk(2, dim=1)
                states.append(self._causal(torch.cat([p / 2 + h, p / 2 + x], dim=1)))
            else:
                states.append(self._causal(torch.cat([states[-1], x], dim=1))[:, x.size(1) :])
        return torch.stack(states)

    def _causal(self, x: Tensor) -> Tensor:
        """B, causal within its input: (B, T, C) -> (B, T, C)."""
        return self._feed_forward(x, self.self_attn(self.norms[0](x), causal=True))

    def alone(self, x: Tensor) -> Tensor:
        """B on windows without a state: (B, T, C) -> (B, T, C)."""
        if x.size(1) > 1:
            return self._causal(x)
        # A single token attends to itself only: attention returns its value, with dropout per head.
        attention, normed = self.self_attn, self.norms[0](x)
        if is_plain(attention.qkv):
            value = linear(normed, attention.qkv.weight[2 * self.width :])
        else:
            value = attention.qkv(normed)[..., 2 * self.width :]
        value = attention.split(value)
        if self.training and attention.dropout:
            value = value * dropout(value.new_ones(*value.shape[:3], 1), attention.dropout, True)
        return self._feed_forward(x, apply(attention.out, value.transpose(1, 2).flatten(2)))

    def _feed_forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The residual sum of x and the output of attention, then the FFN."""
        x = x + dropout(y, self.sublayer.dropout, self.training)
        return self.sublayer(x, self.ffn, self.norms[1], torch.add)

    def _read(self, x: Tensor, skipped: Tensor | None, slot: "Slot") -> Tensor:
        """The output for one token, (B, C) -> (B, C)."""
        slot.prepare(x, self.window, self.accumulate)
        window, place = slot.seen // self.window, slot.seen % self.window
        rows, now = torch.arange(x.size(0), device=x.device), window % 2
        begun = torch.arange(self.window, device=x.device) <= place[:, None]
        after_first = window > 0
        if self.accumulate:
            slot.p[rows, now, place] = torch.where(after_first[:, None], slot.p[rows, now, place], x)
            x = x + slot.p[rows, 1 - now, place] / 2 * after_first[:, None]
        q, slot.inputs[rows, place] = self._project(x)
        earlier = torch.cat([slot.states[rows, 1 - now], slot.inputs], dim=1)
        h = self._attend(x, q, earlier, torch.cat([after_first[:, None].expand_as(begun), begun], dim=1))
        if self.accumulate:
            h = h + slot.p[rows, now, place] / 2
        q, slot.states[rows, now, place] = self._project(h)
        y = self._attend(h, q, slot.states[rows, now], begun)
        if self.accumulate:
            kept = slot.p[rows, 1 - now, place]
            slot.p[rows, 1 - now, place] = y if skipped is None else torch.where(skipped[:, None], kept, y)
        slot.seen += 1 if skipped is None else ~skipped
        return y

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Query (B, C), and key and value (B, 2 C), of one token."""
        return apply(self.self_attn.qkv, self.norms[0](x)).tensor_split([self.width], dim=-1)

    def _attend(self, x: Tensor, q: Tensor, keys_values: Tensor, seen: Tensor) -> Tensor:
        """The block on one token (B, C), attending to the keys and values (B, S, 2 C) where seen, (B, S) bool."""
        q, k, v = (self.self_attn.split(part) for part in (q[:, None], *keys_values.chunk(2, dim=-1)))
        y = self.self_attn.attend(q, k, v, padding_bias(~seen, like=x), causal=False)
        return self._feed_forward(x[:, None], y)[:, 0]


class Slot:
    """Decoding state of a layer: keys and values of the last windows, so its size does not grow with the text.

    `seen` (B,) counts tokens. `inputs` (B, w, 2 C) are keys and values of the current window, and `states`
    (B, 2, w, 2 C) those of its states and of the previous window's, alternating. When accumulating, `p` (B, 2, w, C)
    holds p_i and p_{i-1}, alternating.
    """

    def __init__(self):
        self.seen = self.inputs = self.states = self.p = None

    def prepare(self, like: Tensor, window: int, accumulate: bool) -> None:
        """Allocates the tensors at the first token, (B, C).

        Raises:
            RuntimeError: if gradients would have to flow through the state.
        """
        if torch.is_grad_enabled() and like.requires_grad:
            raise RuntimeError("incremental decoding keeps no gradients: call it under torch.no_grad()")
        if self.seen is not None:
            return
        batch, width = like.shape
        self.seen = torch.zeros(batch, dtype=torch.long, device=like.device)
        self.inputs = like.new_zeros(batch, window, 2 * width)
        self.states = like.new_zeros(batch, 2, window, 2 * width)
        self.p = like.new_zeros(batch, 2, window, width) if accumulate else None

    def reorder(self, order: Tensor) -> None:
        """Entry i becomes what entry order[i] was; the batch may shrink or grow. order: (new B,)."""
        for name, tensor in vars(self).items():
            if tensor is not None:
                setattr(self, name, tensor.index_select(0, order))


class State:
    """The slots of a stack's layers."""

    def __init__(self, layers: int):
        self.slots = [Slot() for _ in range(layers)]

    def reorder(self, order: Tensor) -> None:
        """See :meth:`Slot.reorder`."""
        for slot in self.slots:
            slot.reorder(order)


class RecurrentStack(nn.Module):
    """Recurrent layers: each scans the complete output of the one before.

    Args:
        shape: sizes and rates.
        layers: N.
        activation: applied to the FFN's hidden units.
        window: w, tokens read at a time.
        accumulate: see :class:`RecurrentBlock`.
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
        if layers < 1:
            raise FieldError("layers", layers, "must be >= 1")
        blocks = [RecurrentBlock(shape, activation, window, accumulate) for _ in range(layers)]
        self.loop = Loop(blocks, tuple(range(layers)))
        self.norm = nn.LayerNorm(shape.width, shape.norm_eps, bias=False)

    def new_state(self) -> State:
        """The state of a text that begins."""
        return State(self.loop.passes)

    def forward(self, x: Tensor, padding: Tensor | None = None, state: State | None = None) -> Tensor:
        """Runs all layers on the tokens of x.

        Args:
            x: (B, T, C), embedded tokens; with a state those that follow the ones it has seen.
            padding: (B, L) bool over all tokens, those that the state has seen included; None where nothing is padding.
            state: of :meth:`new_state`; takes the tokens in.

        Returns:
            (B, T, C).
        """
        if state is not None:
            own = None if padding is None else padding[:, -x.size(1) :]
            return self.norm(self.loop(x, slots=state.slots, padding=own)[0])
        window = self._drawn_window()
        if padding is None or not padding[:, 0].any():
            return self.norm(self.loop(x, window=window)[0])
        # Every text begins at the first column of its windows.
        leading, columns = padding.cumprod(1).sum(1, keepdim=True), torch.arange(x.size(1), device=x.device)
        x, _ = self.loop(_columns(x, columns + leading), window=window)
        return self.norm(_columns(x, columns - leading))

    def _drawn_window(self) -> int | None:
        """Drawn with torch's CPU generator, which fairseq seeds for each update, so a resumed run draws the same."""
        if self.window_range is None or not self.training:
            return None
        low, high = self.window_range
        return int(torch.randint(low, high + 1, (), device="cpu"))


def _columns(x: Tensor, columns: Tensor) -> Tensor:
    """x[b, columns[b, t]] for each b and t, with columns clamped to 0 .. T - 1: (B, T, C), (B, T) -> (B, T, C)."""
    rows = torch.arange(x.size(0), device=x.device)[:, None]
    return x[rows, columns.clamp(0, x.size(1) - 1)]
