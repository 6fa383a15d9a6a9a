"""Reference implementation of Intra-Layer Recurrence from its equations: one text at a time, without a cache.

`ilr` reads the published key names.
"""

import torch
from torch import Tensor

from tests.support.relative_reference import sinusoid

Weights = dict[str, Tensor]


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def rotated(x: Tensor) -> Tensor:
    """Rotary positions of (T, D): pairs of features as complex numbers, rotated by position times rate."""
    half = x.size(1) // 2
    rates = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(len(x), dtype=x.dtype)[:, None] * rates
    z = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([z.real, z.imag], dim=1)


def slope(head: int, heads: int) -> float:
    """The ALiBi slope of a head, counted from 0."""
    power = 1
    while power < heads:
        power *= 2
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    return (slopes if power == heads else slopes[1::2] + slopes[0::2])[head]


def relative(w: Weights, name: str, q: Tensor, k: Tensor, head: int, heads: int) -> Tensor:
    """What Transformer-XL adds to the products of queries and keys of one head: (T, T)."""
    u, v, keys = (
        w[f"{name}.{part}"].chunk(heads)[head] for part in ("content_bias", "position_bias", "project.weight")
    )
    distances = torch.stack(
        [torch.stack([sinusoid(i - j, keys.size(1)) for j in range(len(k))]) for i in range(len(q))]
    )
    return k @ u + torch.einsum("id,ijd->ij", q + v, distances @ keys.T)


def llama_attention(w: Weights, name: str, x: Tensor, heads: int, position: str) -> Tensor:
    qkv = [(x @ w[f"{name}.{which}_proj.weight"].T).chunk(heads, 1) for which in "qkv"]
    outputs = []
    for head, (q, k, v) in enumerate(zip(*qkv)):
        if position == "rotary":
            q, k = rotated(q), rotated(k)
        scores = q @ k.T
        if position == "relative":
            scores = scores + relative(w, f"{name}.relative", q, k, head, heads)
        scores = scores / q.size(1) ** 0.5
        if position == "alibi":
            place = torch.arange(len(x), dtype=x.dtype)
            scores = scores + slope(head, heads) * (place[None, :] - place[:, None])
        later = torch.ones_like(scores, dtype=torch.bool).triu(1)
        outputs.append(scores.masked_fill(later, float("-inf")).softmax(-1) @ v)
    return torch.cat(outputs, dim=1) @ w[f"{name}.o_proj.weight"].T


def llama_layer(w: Weights, index: int, x: Tensor, heads: int, position: str) -> Tensor:
    one = f"model.layers.{index}"
    n = rms_norm(x, w[f"{one}.input_layernorm.weight"])
    x = x + llama_attention(w, f"{one}.self_attn", n, heads, position)
    n = rms_norm(x, w[f"{one}.post_attention_layernorm.weight"])
    gate = n @ w[f"{one}.mlp.gate_proj.weight"].T
    up = n @ w[f"{one}.mlp.up_proj.weight"].T
    return x + (gate * torch.sigmoid(gate) * up) @ w[f"{one}.mlp.down_proj.weight"].T


def ilr(w: Weights, tokens: Tensor, heads: int, position: str, counts=None, loops=1, layers=0, inject=False) -> Tensor:
    """Logits of one text: (T,) -> (T, vocabulary), with a reuse map `counts` or with `loops` over all `layers`."""
    embedding = x = w["model.embed_tokens.weight"][tokens]
    if position == "learned":
        embedding = x = x + w["model.embed_positions.weight"][: len(tokens)]
    for loop in range(loops if counts is None else 0):
        if loop > 0 and inject:
            x = x + embedding
        for index in range(layers):
            x = llama_layer(w, index, x, heads, position)
    for index, count in enumerate(counts or ()):
        first = x
        for number in range(count):
            x = llama_layer(w, index, x + first if inject and number > 0 else x, heads, position)
    return rms_norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T
