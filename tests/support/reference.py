"""Reference implementations of the published translation models from their equations, independent of our code.

Each uses the published key names and runs sentence by sentence, so that no padding or padding mask is needed.
Letters: d width, i level or layer. x: (T, d); memory: (S, d).
"""

import functools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)


def layer_norm(w: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(d / heads)) v in each head."""
    q, k, v = (part.unflatten(-1, (heads, -1)) for part in (q, k, v))
    scores = torch.einsum("thc,shc->hts", q, k) / math.sqrt(q.size(-1))
    if causal:
        t, s = scores.shape[1:]
        scores = scores.masked_fill(torch.arange(s) > torch.arange(t)[:, None], -math.inf)
    return torch.einsum("hts,shc->thc", scores.softmax(-1), v).flatten(1)


def table(formula: Callable[[int, int], float], length: int, width: int) -> Tensor:
    return torch.tensor([[formula(p, i) for i in range(width)] for p in range(length)], dtype=torch.float64)


# RingFormer, universal, One Wide FFN, vanilla


def own_attention(w: Weights, name: str, x: Tensor, memory: Tensor, heads: int, causal=False, signals=()) -> Tensor:
    q, k, v = (linear(w, f"{name}.{part}_proj", y) for part, y in zip("qkv", (x, memory, memory)))
    if signals:
        q, k, v = (part + x @ signal.T for part, signal in zip((q, k, v), signals))
    return linear(w, f"{name}.attn_proj", attend(q, k, v, heads, causal))


def feed_forward(w: Weights, name: str, x: Tensor) -> Tensor:
    hidden = gelu(linear(w, f"{name}.positionWiseFeedForward.FFN1.0", x))
    return linear(w, f"{name}.positionWiseFeedForward.FFN2.0", hidden)


def layer(w: Weights, block: str, x: Tensor, memory: Tensor | None, heads: int, norms: Iterator, ffn: bool) -> Tensor:
    """A post-norm layer without signals; `norms` yields one function per sublayer."""
    decoder = memory is not None
    own = f"{block}.{'masked_' if decoder else ''}self_attention"
    x = next(norms)(x + own_attention(w, own, x, x, heads, causal=decoder))
    if decoder:
        x = next(norms)(x + own_attention(w, f"{block}.enc_dec_attention", x, memory, heads))
    return next(norms)(x + feed_forward(w, block, x)) if ffn else x


def ring_stack(w: Weights, side: str, x: Tensor, memory: Tensor | None, heads: int, depth: int) -> Tensor:
    block, decoder = f"{side}.{side}s.0", memory is not None
    for i in range(depth):
        q, k, v, f = (
            w[f"{side}.lev_param_{target}_01"][i].T @ w[f"{side}.lev_param_{target}_02"][i]
            for target in ("SA_Q", "SA_K", "SA_V", "FF")
        )
        norm = [functools.partial(layer_norm, w, f"{side}.layer_norms_0{n}.{i}", eps=1e-5) for n in (1, 2, 3)]
        own = f"{block}.{'masked_' if decoder else ''}self_attention"
        x = norm[0](x + own_attention(w, own, x, x, heads, decoder, (q, k, v)))
        if decoder:
            x = norm[1](x + own_attention(w, f"{block}.enc_dec_attention", x, memory, heads))
        x = norm[2 if decoder else 1](x + feed_forward(w, block, x + x @ f.T))
    return x


def universal_stack(w: Weights, side: str, x: Tensor, memory: Tensor | None, heads: int, depth: int) -> Tensor:
    def signal(at: int, feature: int) -> float:
        k = feature + 1
        return (math.cos if k % 2 else math.sin)((at + 1) / 10000 ** (2 * k / x.size(1)))

    block = f"{side}.{side}s.0"
    for j in range(depth):
        x = x + table(signal, len(x), x.size(1)) + table(signal, depth, x.size(1))[j]
        norms = (functools.partial(layer_norm, w, f"{block}.layer_norm_0{n}", eps=1e-6) for n in (1, 2, 3))
        x = layer(w, block, x, memory, heads, norms, ffn=True)
    return x


def wide_stack(
    w: Weights, side: str, x: Tensor, memory: Tensor | None, heads: int, depth: int, wide: bool = True
) -> Tensor:
    """One Wide FFN: the encoder's layers share one FFN, the decoder's have none. Otherwise each layer has its own."""
    for i in range(depth):
        block = f"{side}.{side}s.{i}"
        norms = iter([functools.partial(layer_norm, w, f"{block}.layer_norm", eps=1e-6)] * 3)
        x = layer(w, block, x, memory, heads, norms, ffn=not wide)
        if wide and memory is None:
            x = layer_norm(w, "encoder.FFN.layer_norm", x + feed_forward(w, "encoder.FFN", x), eps=1e-6)
    return x


def sinusoid(width: int) -> Callable[[int, int], float]:
    return lambda p, i: (math.cos if i % 2 else math.sin)(p / 10000 ** ((i - i % 2) / width))


def embed(w: Weights, side: str, tokens: Tensor, positions: bool, pad: int) -> Tensor:
    x = w[f"{side}.emb_layer.emb_layer.weight"][tokens]
    learned, width = w.get(f"{side}.pos_layer.emb_layer.weight"), x.size(1)
    if learned is not None:
        return x + learned[: len(x)]
    return x + table(sinusoid(width), len(x), width) if positions else x


# Takase & Kiyono


def takase_attention(w: Weights, name: str, x: Tensor, memory: Tensor, heads: int, causal: bool) -> Tensor:
    rows = zip(w[f"{name}.in_proj_weight"].chunk(3), w[f"{name}.in_proj_bias"].chunk(3), (x, memory, memory))
    return linear(w, f"{name}.out_proj", attend(*(y @ weight.T + bias for weight, bias, y in rows), heads, causal))


def takase_stack(w: Weights, side: str, x: Tensor, memory: Tensor | None, heads: int, depth: int) -> Tensor:
    for i in range(depth):
        one = f"{side}.layers.{i}"
        norm = functools.partial(layer_norm, w, eps=1e-5)
        omega = {name: w.get(f"{one}.{name}_ratio_change", 1) for name in ("attention", "self", "encoder", "fc")}
        y = takase_attention(w, f"{one}.self_attn", x, x, heads, causal=memory is not None)
        x = norm(f"{one}.self_attn_layer_norm", x * omega["attention" if memory is None else "self"] + y)
        if memory is not None:
            y = takase_attention(w, f"{one}.encoder_attn", x, memory, heads, causal=False)
            x = norm(f"{one}.encoder_attn_layer_norm", x * omega["encoder"] + y)
        y = linear(w, f"{one}.fc2", linear(w, f"{one}.fc1", x).clamp(min=0))
        x = norm(f"{one}.final_layer_norm", x * omega["fc"] + y)
    return x


def takase_embed(w: Weights, side: str, tokens: Tensor, pad: int) -> Tensor:
    x = w[f"{side}.embed_tokens.weight"][tokens]
    half = x.size(1) // 2

    def sinusoid(p: int, i: int) -> float:
        angle = (p + pad + 1) * math.exp(-(i % half) * math.log(10000) / (half - 1))
        return math.sin(angle) if i < half else math.cos(angle)

    return x * math.sqrt(x.size(1)) + table(sinusoid, len(x), x.size(1))


# SReT's recursion in translation, which has no published code: with our key names


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


# Complete models


def logits(
    w: Weights,
    source: Tensor,
    target: Tensor,
    heads: int,
    pad: int,
    depths: tuple[int, int],
    embed: Callable,
    stack: Callable,
    output: str,
) -> Tensor:
    """(B, S) and (B, T) tokens, padded on any side -> (B, T, vocabulary), zeros at padding."""
    rows = []
    for words, previous in zip(source, target):
        keep = previous.ne(pad)
        memory = stack(w, "encoder", embed(w, "encoder", words[words.ne(pad)], pad=pad), None, heads, depths[0])
        x = stack(w, "decoder", embed(w, "decoder", previous[keep], pad=pad), memory, heads, depths[1])
        row = linear(w, output, x)
        rows.append(row.new_zeros(len(previous), row.size(1)).index_put((keep,), row))
    return torch.stack(rows)


def _ringformer(stack: Callable, positions: bool = True) -> Callable:
    return functools.partial(logits, embed=functools.partial(embed, positions=positions), stack=stack, output="fc")


SYSTEMS = {
    "ringformer": _ringformer(ring_stack),
    "universal": _ringformer(universal_stack, positions=False),
    "one_wide_ffn": _ringformer(wide_stack),
    "vanilla": _ringformer(functools.partial(wide_stack, wide=False)),
    "takase": functools.partial(logits, embed=takase_embed, stack=takase_stack, output="decoder.embed_tokens"),
    "recursive": functools.partial(
        logits,
        embed=lambda w, side, tokens, pad: takase_embed(w, "encoder", tokens, pad),
        stack=recursive_stack,
        output="encoder.embed_tokens",
    ),
}
