"""References of SReT and its recursive DeiT and Mixer from their equations, independent of our code, image by image.

SReT uses the published key names, the others ours. Letters: c channels, d width, n tokens.
image: (c, height, width); x: (n, d).
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.reference import Weights, attend, gelu, layer_norm, linear


def convolve(w: Weights, name: str, image: Tensor, stride: int, padding: int = 0) -> Tensor:
    """(c, height, width) -> (d, height / stride, width / stride); with one channel in each filter, depthwise."""
    weight = w[f"{name}.weight"]
    return F.conv2d(image[None], weight, w[f"{name}.bias"], stride, padding, groups=len(image) // weight.size(1))[0]


def patches(w: Weights, name: str, image: Tensor) -> Tensor:
    return convolve(w, name, image, stride=w[f"{name}.weight"].size(-1)).flatten(1).T


# SReT, published names


def mlp(w: Weights, name: str, x: Tensor) -> Tensor:
    return linear(w, f"{name}.fc2", gelu(linear(w, f"{name}.fc1", x)))


def stem(w: Weights, name: str, image: Tensor) -> Tensor:
    for i in (1, 2, 3):
        image = convolve(w, f"{name}.conv{i}", image, stride=2, padding=1)
        mean, variance = (w[f"{name}.bn{i}.running_{kind}"][:, None, None] for kind in ("mean", "var"))
        scale, shift = (w[f"{name}.bn{i}.{kind}"][:, None, None] for kind in ("weight", "bias"))
        image = ((image - mean) / (variance + 1e-5).sqrt() * scale + shift).clamp(min=0)
    return image


def sliced_attention(w: Weights, name: str, x: Tensor, heads: int, slices: Sequence[Tensor]) -> Tensor:
    """Attention within slices, given as the indices of their tokens."""
    out = torch.empty_like(x)
    for tokens in slices:
        q, k, v = linear(w, f"{name}.qkv", x[tokens]).chunk(3, dim=-1)
        out[tokens] = linear(w, f"{name}.proj", attend(q, k, v, heads, causal=False))
    return out


def coefficient(w: Weights, name: str, number: int) -> Tensor | float:
    return w.get(f"{name}.coefficient{number}.bias", 1.0)


def sret_pass(w: Weights, block: str, nll: str, x: Tensor, heads: int, slices: Sequence[Tensor]) -> Tensor:
    y = sliced_attention(w, f"{block}.attn", layer_norm(w, f"{block}.norm1", x, 1e-6), heads, slices)
    x = coefficient(w, block, 1) * x + coefficient(w, block, 2) * y
    y = mlp(w, f"{block}.mlp", layer_norm(w, f"{block}.norm2", x, 1e-6))
    x = coefficient(w, block, 3) * x + coefficient(w, block, 4) * y
    if f"{nll}.norm1.weight" not in w:
        return x
    return coefficient(w, nll, 1) * x + coefficient(w, nll, 2) * mlp(
        w, f"{nll}.mlp", layer_norm(w, f"{nll}.norm1", x, 1e-6)
    )


def sret(w: Weights, image: Tensor, heads: Sequence[int], slices: Sequence[Sequence[Sequence[Tensor]]]) -> Tensor:
    """Logits of one image, from the class token if there is one; `slices` are given by stage and pass."""
    x = stem(w, "patch_embed", image) if "patch_embed.conv1.weight" in w else convolve(w, "patch_embed.proj", image, 8)
    x, token = x + w["pos_embed"][0], w.get("cls_token", [None])[0]  # a 1 x 1 map
    for stage, passes in enumerate(slices):
        if stage:
            pool = partial(convolve, w, f"pools.{stage - 1}.conv", stride=2, padding=1)
            x, token = pool(x), None if token is None else pool(token)
        grid, x = x.shape[1:], x.flatten(1).T
        if token is not None:
            x = torch.cat([token.flatten(1).T, x])
        for i, of_pass in enumerate(passes):
            names = (f"transformers.{stage}.blocks.{2 * i + nll}" for nll in (0, 1))
            x = sret_pass(w, *names, x, heads[stage], of_pass)
        if token is not None:
            token, x = x[0, :, None, None], x[1:]
        x = x.T.unflatten(1, grid)
    pooled = x.mean((1, 2)) if token is None else token.flatten()
    return linear(w, "head", layer_norm(w, "norm", pooled, 1e-6))


# Recursive DeiT and Mixer, our names


def residual(w: Weights, name: str, x: Tensor, y: Tensor) -> Tensor:
    return w.get(f"{name}.identity", 1.0) * x + w.get(f"{name}.branch", 1.0) * y


def feed_forward(w: Weights, name: str, x: Tensor) -> Tensor:
    return linear(w, f"{name}.down", gelu(linear(w, f"{name}.up", x)))


def recursive_stack(w: Weights, x: Tensor, order: Sequence[int], mix: Callable[[str, Tensor], Tensor]) -> Tensor:
    """Pre-norm blocks in the given order; `mix` is attention, or an MLP over the tokens."""
    for i, which in enumerate(order):
        block, nll = f"loop.blocks.{which}", f"loop.own.{i}.projection"
        x = residual(w, f"{block}.residuals.0", x, mix(block, layer_norm(w, f"{block}.norms.0", x, 1e-6)))
        y = feed_forward(w, f"{block}.ffn", layer_norm(w, f"{block}.norms.1", x, 1e-6))
        x = residual(w, f"{block}.residuals.1", x, y)
        if f"{nll}.up.weight" in w:
            x = residual(w, f"{nll}.residual", x, feed_forward(w, nll, layer_norm(w, f"{nll}.norm", x, 1e-6)))
    return layer_norm(w, "norm", x, 1e-6)


def recursive_deit(w: Weights, image: Tensor, heads: int, order: Sequence[int]) -> Tensor:
    """Logits of one image, from the class token or, without one, the mean of the patches."""

    def mix(block: str, x: Tensor) -> Tensor:
        q, k, v = linear(w, f"{block}.self_attn.qkv", x).chunk(3, dim=-1)
        return linear(w, f"{block}.self_attn.out", attend(q, k, v, heads, causal=False))

    if "patch_embed.stem.conv1.weight" in w:
        image = stem(w, "patch_embed.stem", image)
    x = patches(w, "patch_embed.proj", image)
    if "cls_token" not in w:
        return linear(w, "head", recursive_stack(w, x + w["pos_embed"][0], order, mix).mean(0))
    x = torch.cat([w["cls_token"][0], x]) + w["pos_embed"][0]
    return linear(w, "head", recursive_stack(w, x, order, mix)[0])


def recursive_mixer(w: Weights, image: Tensor, order: Sequence[int]) -> Tensor:
    """Logits of one image, from the mean of the patches."""
    x = patches(w, "patch_embed.proj", image)
    x = recursive_stack(w, x, order, lambda block, n: feed_forward(w, f"{block}.mixing", n.T).T)
    return linear(w, "head", x.mean(0))
