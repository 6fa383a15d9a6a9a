"""A reference of SReT's recursion in translation from its equations, independent of our code.

It runs sentence by sentence, so that no padding or padding mask is needed. Letters: d width, i pass. x: (T, d);
memory: (S, d).
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import gelu

Weights = dict[str, Tensor]


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)


def layer_norm(w: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(d / heads)) v in each head."""
    q, k, v = (part.unflatten(-1, (heads, -1)) for part in (q, k, v))
    scores = torch.einsum("thc,shc->hts", q, k) / math.sqrt(q.size(-1))
    if causal:
        t, s = scores.shape[1:]
        scores = scores.masked_fill(torch.arange(s) > torch.arange(t)[:, None], -math.inf)
    return torch.einsum("hts,shc->thc", scores.softmax(-1), v).flatten(1)


# SReT's recursion in translation, which has no published code: with our key names


def embed(w: Weights, tokens: Tensor, pad: int) -> Tensor:
    x = w["encoder.embed_tokens.weight"][tokens]
    half = x.size(1) // 2

    def sinusoid(p: int, i: int) -> float:
        angle = (p + pad + 1) * math.exp(-(i % half) * math.log(10000) / (half - 1))
        return math.sin(angle) if i < half else math.cos(angle)

    table = [[sinusoid(p, i) for i in range(x.size(1))] for p in range(len(x))]
    return x * math.sqrt(x.size(1)) + torch.tensor(table, dtype=torch.float64)


def scaled_sum(w: Weights, name: str, x: Tensor, y: Tensor) -> Tensor:
    return x * w[f"{name}.identity"] + y * w[f"{name}.branch"]


def projection(w: Weights, name: str, x: Tensor) -> Tensor:
    hidden = gelu(linear(w, f"{name}.up", layer_norm(w, f"{name}.norm", x, eps=1e-5)))
    return scaled_sum(w, f"{name}.residual", x, linear(w, f"{name}.down", hidden))


def recursive_stack(w: Weights, side: str, x: Tensor, memory: Tensor | None, heads: int, depth: int) -> Tensor:
    for i in range(depth):
        block = f"{side}.loop.blocks.{i // 2}"

        def join(which: int, x: Tensor, y: Tensor, block: str = block) -> Tensor:
            return layer_norm(w, f"{block}.norms.{which}", scaled_sum(w, f"{block}.residuals.{which}", x, y), eps=1e-5)

        q, k, v = linear(w, f"{block}.self_attn.qkv", x).chunk(3, dim=-1)
        y = attend(q, k, v, heads, causal=memory is not None)
        x = join(0, x, linear(w, f"{block}.self_attn.out", y))
        if memory is not None:
            k, v = linear(w, f"{block}.cross_attn.kv", memory).chunk(2, dim=-1)
            y = attend(linear(w, f"{block}.cross_attn.q", x), k, v, heads, causal=False)
            x = join(1, x, linear(w, f"{block}.cross_attn.out", y))
        hidden = linear(w, f"{block}.ffn.up", x).clamp(min=0)
        x = join(1 if memory is None else 2, x, linear(w, f"{block}.ffn.down", hidden))
        if f"{side}.loop.own.{i}.projection.norm.weight" in w:
            x = projection(w, f"{side}.loop.own.{i}.projection", x)
    return x


def logits(w: Weights, source: Tensor, target: Tensor, heads: int, pad: int, depth: int) -> Tensor:
    """(B, S) and (B, T) tokens, padded on any side -> (B, T, vocabulary), zeros at padding."""
    rows = []
    for words, previous in zip(source, target):
        keep = previous.ne(pad)
        memory = recursive_stack(w, "encoder", embed(w, words[words.ne(pad)], pad), None, heads, depth)
        x = recursive_stack(w, "decoder", embed(w, previous[keep], pad), memory, heads, depth)
        row = linear(w, "encoder.embed_tokens", x)
        rows.append(row.new_zeros(len(previous), row.size(1)).index_put((keep,), row))
    return torch.stack(rows)
