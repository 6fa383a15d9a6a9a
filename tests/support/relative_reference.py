"""Transformer-XL's attention from its formula, one query and one key at a time (arXiv:1901.02860, section 3.3)."""

import math

import torch
from torch import Tensor, nn


def sinusoid(distance: int, width: int) -> Tensor:
    """R of a distance: sines, then cosines."""
    angles = [distance / 10000 ** (2 * j / width) for j in range(width // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def relative_attention(layer: nn.Module, x: Tensor, causal: bool) -> Tensor:
    """The output of self-attention with relative positions for one text: (T, C) -> (T, C)."""
    (length, width), heads = x.shape, layer.heads
    qkv = [(x @ w.T + b).chunk(heads, 1) for w, b in zip(layer.qkv.weight.chunk(3), layer.qkv.bias.chunk(3))]
    relative = layer.relative
    u, v = relative.content_bias.chunk(heads), relative.position_bias.chunk(heads)
    keys = relative.project.weight.chunk(heads)
    outputs = []
    for head in range(heads):
        query, key, value = (part[head] for part in qkv)
        for i in range(length):
            seen = range(i + 1 if causal else length)
            content = [(query[i] + u[head]) @ key[j] for j in seen]
            place = [(query[i] + v[head]) @ (keys[head] @ sinusoid(i - j, width)) for j in seen]
            scores = (torch.stack(content) + torch.stack(place)) / math.sqrt(width / heads)
            outputs.append(scores.softmax(0) @ value[: len(seen)])
    y = torch.stack(outputs).view(heads, length, -1).transpose(0, 1).flatten(1)
    return y @ layer.out.weight.T + layer.out.bias
