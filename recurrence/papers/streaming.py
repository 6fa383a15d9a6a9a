"""Decoding state of Kausik's recurrent transformer, whose size does not grow with the text.

By the equations of :mod:`recurrence.papers.kausik`, the token at place j of window i gets its state h_i from all of
h_{i-1} and the places up to j of x_i, and its output y_i from the places up to j of h_i.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recurrence.attention import padding_bias, product_dtype
from recurrence.papers.scan_step import split_heads

if TYPE_CHECKING:
    from recurrence.papers.kausik import RecurrentBlock


class LayerState:
    """The state of one layer: keys and values of the last windows.

    `seen` (B,) counts tokens. `inputs` (B, w, 2 C) has keys and values of the current x_i. `states` (B, 2, w, 2 C) has
    those of h_i and h_{i-1}, and, when accumulating, `p` (B, 2, w, C) has p_i and p_{i-1}; the two take turns, so that
    window i is at index i % 2.
    """

    def __init__(self):
        self.seen = self.inputs = self.states = self.p = None

    def read(self, block: "RecurrentBlock", x: Tensor, padding: Tensor | None) -> Tensor:
        """Reads tokens one by one: input (B, T, C) -> output of the layer (B, T, C), undefined at padding.

        Args:
            block: the layer.
            x: its input.
            padding: (B, T) bool, tokens that do not count; None for none.

        Raises:
            RuntimeError: if gradients would have to flow through the state.
        """
        if self.seen is None:
            self._allocate(block, x)
        skipped = [None] * x.size(1) if padding is None else padding.unbind(1)
        return torch.stack([self._read_token(block, *each) for each in zip(x.unbind(1), skipped)], dim=1)

    def reorder(self, order: Tensor) -> None:
        """Reorders the batch: entry i becomes entry order[i], (new B,)."""
        for name, tensor in vars(self).items():
            if tensor is not None:
                setattr(self, name, tensor.index_select(0, order))

    def _allocate(self, block: "RecurrentBlock", like: Tensor) -> None:
        (batch, _, width), projected = like.shape, product_dtype(like)
        self.seen = torch.zeros(batch, dtype=torch.long, device=like.device)
        self.inputs = like.new_zeros(batch, block.window, 2 * width, dtype=projected)
        self.states = like.new_zeros(batch, 2, block.window, 2 * width, dtype=projected)
        self.p = like.new_zeros(batch, 2, block.window, width) if block.accumulate else None

    def _read_token(self, block: "RecurrentBlock", x: Tensor, skipped: Tensor | None) -> Tensor:
        """The output for one token, (B, C) -> (B, C)."""
        window, place = self.seen // block.window, self.seen % block.window
        rows, now = torch.arange(x.size(0), device=x.device), window % 2
        upto_place = torch.arange(block.window, device=x.device) <= place[:, None]
        after_first = window > 0
        if block.accumulate:
            self.p[rows, now, place] = torch.where(after_first[:, None], self.p[rows, now, place], x)
            x = x + self.p[rows, 1 - now, place] / 2 * after_first[:, None]
        q, projected = _project(block, x)
        if projected.requires_grad:
            raise RuntimeError("incremental decoding keeps no gradients: call it under torch.no_grad()")
        self.inputs[rows, place] = projected
        keys_values = torch.cat([self.states[rows, 1 - now], self.inputs], dim=1)
        visible = torch.cat([after_first[:, None].expand_as(upto_place), upto_place], dim=1)
        h = _attend(block, x, q, keys_values, visible)
        if block.accumulate:
            h = h + self.p[rows, now, place] / 2
        q, self.states[rows, now, place] = _project(block, h)
        y = _attend(block, h, q, self.states[rows, now], upto_place)
        if block.accumulate:
            before = self.p[rows, 1 - now, place]
            self.p[rows, 1 - now, place] = y if skipped is None else torch.where(skipped[:, None], before, y)
        self.seen += 1 if skipped is None else ~skipped
        return y


class StackState:
    """The states of the layers of a stack."""

    def __init__(self, layers: int):
        self.layers = [LayerState() for _ in range(layers)]

    def reorder(self, order: Tensor) -> None:
        for layer in self.layers:
            layer.reorder(order)


def _project(block: "RecurrentBlock", x: Tensor) -> tuple[Tensor, Tensor]:
    """Query (B, C), and key and value (B, 2 C), of one token (B, C)."""
    return block.self_attn.qkv(block.norms[0](x)).tensor_split([block.width], dim=-1)


def _attend(block: "RecurrentBlock", x: Tensor, q: Tensor, keys_values: Tensor, visible: Tensor) -> Tensor:
    """The block on one token: (B, C) -> (B, C).

    Args:
        block: the layer.
        x, q: the token and its query, (B, C).
        keys_values: (B, S, 2 C).
        visible: (B, S) bool, which of them the token sees.
    """
    heads = block.self_attn.heads
    q, k, v = (split_heads(part, heads) for part in (q[:, None], *keys_values.chunk(2, dim=-1)))
    y = block.self_attn.attend(q, k, v, padding_bias(~visible, like=x), causal=False)
    return block.feed_forward(x[:, None], y)[:, 0]
