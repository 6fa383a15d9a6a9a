"""References of SReT and its recursive DeiT and Mixer from their equations, independent of our code, image by image.

The key names are ours. Letters: c channels, d width, n tokens. image: (c, height, width); x: (n, d).
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import gelu

from tests.support.reference import Weights, attend, layer_norm, linear


def convolve(w: Weights, name: str, image: Tensor, stride: int, padding: int = 0) -> Tensor:
    """(c, height, width) -> (d, height / stride, width / stride); with one channel in each filter, depthwise."""
    weight = w[f"{name}.weight"]
    return F.conv2d(image[None], weight, w[f"{name}.bias"], stride, padding, groups=len(image) // weight.size(1))[0]


def patches(w: Weights, name: str, image: Tensor) -> Tensor:
    return convolve(w, name, image, stride=w[f"{name}.weight"].size(-1)).flatten(1).T


def stem(w: Weights, name: str, image: Tensor) -> Tensor:
    for i in (1, 2, 3):
        image = convolve(w, f"{name}.conv{i}", image, stride=2, padding=1)
        mean, variance = (w[f"{name}.bn{i}.running_{kind}"][:, None, None] for kind in ("mean", "var"))
        scale, shift = (w[f"{name}.bn{i}.{kind}"][:, None, None] for kind in ("weight", "bias"))
        image = ((image - mean) / (variance + 1e-5).sqrt() * scale + shift).clamp(min=0)
    return image


def attention(
    w: Weights, block: str, index: int, x: Tensor, heads: int, slices: Sequence[Sequence] | None = None
) -> Tensor:
    """Attention within the slices of a pass, given as the indices of their tokens; of all tokens without slices."""
    out = torch.empty_like(x)
    for tokens in [slice(None)] if slices is None else slices[index]:
        q, k, v = linear(w, f"{block}.self_attn.qkv", x[tokens]).chunk(3, dim=-1)
        out[tokens] = linear(w, f"{block}.self_attn.out", attend(q, k, v, heads, causal=False))
    return out


def residual(w: Weights, name: str, x: Tensor, y: Tensor) -> Tensor:
    return w.get(f"{name}.identity", 1.0) * x + w.get(f"{name}.branch", 1.0) * y


def feed_forward(w: Weights, name: str, x: Tensor) -> Tensor:
    return linear(w, f"{name}.down", gelu(linear(w, f"{name}.up", x)))


def recursive_stack(w: Weights, loop: str, x: Tensor, order: Sequence[int], mix: Callable) -> Tensor:
    """Pre-norm blocks in the given order; `mix(block, pass, x)` is attention, or an MLP over the tokens."""
    for i, which in enumerate(order):
        block, nll = f"{loop}.blocks.{which}", f"{loop}.own.{i}.projection"
        x = residual(w, f"{block}.residuals.0", x, mix(block, i, layer_norm(w, f"{block}.norms.0", x, 1e-6)))
        y = feed_forward(w, f"{block}.ffn", layer_norm(w, f"{block}.norms.1", x, 1e-6))
        x = residual(w, f"{block}.residuals.1", x, y)
        if f"{nll}.up.weight" in w:
            x = residual(w, f"{nll}.residual", x, feed_forward(w, nll, layer_norm(w, f"{nll}.norm", x, 1e-6)))
    return x


def sret(
    w: Weights,
    image: Tensor,
    heads: Sequence[int],
    orders: Sequence[Sequence[int]],
    slices: Sequence[Sequence[Sequence]],
) -> Tensor:
    """Logits of one image, from the class token if there is one; orders and slices are given by stage."""
    x = stem(w, "patch_embed", image) if "patch_embed.conv1.weight" in w else convolve(w, "patch_embed.proj", image, 8)
    x, token = x + w["pos_embed"][0], w.get("cls_token", [None])[0]  # a 1 x 1 map
    for stage, order in enumerate(orders):
        if stage:
            pool = partial(convolve, w, f"stages.{stage}.pool", stride=2, padding=1)
            x, token = pool(x), None if token is None else pool(token)
        grid, x = x.shape[1:], x.flatten(1).T
        if token is not None:
            x = torch.cat([token.flatten(1).T, x])
        mix = partial(attention, w, heads=heads[stage], slices=slices[stage])
        x = recursive_stack(w, f"stages.{stage}.loop", x, order, mix)
        if token is not None:
            token, x = x[0, :, None, None], x[1:]
        x = x.T.unflatten(1, grid)
    pooled = x.mean((1, 2)) if token is None else token.flatten()
    return linear(w, "head", layer_norm(w, "norm", pooled, 1e-6))


def recursive_deit(w: Weights, image: Tensor, heads: int, order: Sequence[int]) -> Tensor:
    """Logits of one image, from the class token or, without one, the mean of the patches."""
    if "patch_embed.stem.conv1.weight" in w:
        image = stem(w, "patch_embed.stem", image)
    x, has_token = patches(w, "patch_embed.proj", image), "cls_token" in w
    x = (torch.cat([w["cls_token"][0], x]) if has_token else x) + w["pos_embed"][0]
    x = layer_norm(w, "norm", recursive_stack(w, "loop", x, order, partial(attention, w, heads=heads)), 1e-6)
    return linear(w, "head", x[0] if has_token else x.mean(0))


def recursive_mixer(w: Weights, image: Tensor, order: Sequence[int]) -> Tensor:
    """Logits of one image, from the mean of the patches."""
    x = patches(w, "patch_embed.proj", image)
    x = recursive_stack(w, "loop", x, order, lambda block, _, n: feed_forward(w, f"{block}.mixing", n.T).T)
    return linear(w, "head", layer_norm(w, "norm", x, 1e-6).mean(0))
