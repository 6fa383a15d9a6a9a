"""Kausik's recurrence as in the published code: two chunks per step, each step a call of the complete block.

Tests compare outputs with it, and the benchmark compares times.
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from recurrence.papers.kausik import RecurrentBlock


def plain_block(block: RecurrentBlock, x: Tensor) -> Tensor:
    """The block, causal and with dropout in training: (B, T, C) -> (B, T, C)."""
    drop = functools.partial(F.dropout, training=block.training)
    attention, ffn, rate = block.self_attn, block.ffn, block.sublayer.dropout.p
    norm = functools.partial(F.layer_norm, normalized_shape=(x.size(-1),), eps=1e-5)
    qkv = F.linear(norm(x, weight=block.norms[0].weight), attention.qkv.weight)
    q, k, v = (part.unflatten(-1, (attention.heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    of_weights = attention.dropout.p if block.training else 0.0
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=of_weights).transpose(1, 2).flatten(2)
    x = x + drop(F.linear(y, attention.out.weight), rate)
    hidden = ffn.activation(F.linear(norm(x, weight=block.norms[1].weight), ffn.up.weight))
    return x + drop(F.linear(drop(hidden, ffn.dropout.p), ffn.down.weight), rate)


def published(block: RecurrentBlock, x: Tensor, as_published_end: bool = False) -> Tensor:
    """The published code's recurrence, window after window: (B, T, C) -> (B, T, C).

    as_published_end: with accumulation, the last output is B(h) as in that code, instead of B(p / 2 + h) as at all
        other positions.
    """
    chunks = x.split(block.window, dim=1)
    p, h, outputs = chunks[0], plain_block(block, chunks[0]), []
    for chunk in chunks[1:]:
        pair = (p / 2 + h, p[:, : chunk.size(1)] / 2 + chunk) if block.accumulate else (h, chunk)
        y = plain_block(block, torch.cat(pair, dim=1))
        p, h = y.split([h.size(1), chunk.size(1)], dim=1)
        outputs.append(p)
    if block.accumulate and not as_published_end:
        h = h + p[:, : h.size(1)] / 2
    return torch.cat([*outputs, plain_block(block, h)], dim=1)
