"""Multi-head attention on `scaled_dot_product_attention`, one GEMM for all projections that read the same input.

Source: Vaswani et al. (arXiv:1706.03762), section 3.2. Heads are scaled by 1 / sqrt(head width).
"""

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from recurrence.cache import Slot
from recurrence.parts import Dropout
from recurrence.private_torch import attention_kernels, func_is_active
from recurrence.relative import RelativeKeys


class Attention(nn.Module):
    """The common part of self- and cross-attention: heads, dropout on the weights, output projection.

    Args:
        width: C.
        heads: H, a divisor of C.
        bias: whether the projections have biases.
        dropout: rate on the attention weights.
    """

    __call__: Callable[..., Tensor]

    def __init__(self, width: int, heads: int, bias: bool, dropout: float):
        super().__init__()
        self.heads = heads
        self.dropout = Dropout(dropout)
        self.out = nn.Linear(width, width, bias=bias)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
        """q (B, H, T, C/H), k and v (B, H, S, C/H), bias broadcastable to (B, H, T, S) -> (B, T, C), after `out`."""
        rate = self.dropout.p if self.dropout.training else 0.0
        if rate and isinstance(q, Tensor) and q.device.type == "cpu" and q.dtype == torch.float32:
            # On CPUs torch does not fuse dropout, and draws masks slower.
            weights = attention_weights(q, k, causal_bias(q.size(2), q) if causal else bias)
            y = self.dropout(weights) @ v
        else:
            differentiated = (
                func_is_active()
                or forward_ad.unpack_dual(q).tangent is not None
                or forward_ad.unpack_dual(k).tangent is not None  # of the memory alone
            )
            restricted = isinstance(q, Tensor) and (differentiated or q.is_cuda)
            with attention_kernels(q) if restricted else nullcontext():
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=rate, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class SelfAttention(Attention):
    """Queries, keys and values from one input by one GEMM.

    Args:
        width, heads, bias, dropout: see :class:`Attention`.
        relative: whether scores depend on distances, see :mod:`recurrence.relative`.
    """

    def __init__(self, width: int, heads: int, bias: bool, dropout: float, relative: bool = False):
        super().__init__(width, heads, bias, dropout)
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.relative = RelativeKeys(width, heads) if relative else None

    def forward(
        self,
        x: Tensor,
        qkv: Tensor | None = None,
        self_bias: Tensor | None = None,
        causal: bool = False,
        slot: Slot | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        distance_keys: Tensor | None = None,
    ) -> Tensor:
        """Attends within x or, with a slot, from the tokens of x to those in the slot and to themselves: (B, T, C).

        Args:
            x: (B, T, C).
            qkv: (B, T, 3 C), queries, keys and values, if the caller has projected x.
            self_bias: added to the scores, broadcastable to (B, H, T, S).
            causal: each token only sees itself and earlier tokens. Not if the slot already holds tokens: a single new
                token sees them all, and several need a bias.
            slot: incremental state of this pass.
            rotary: cosines and sines that rotate queries and keys, see :func:`rotate`.
            distance_keys: (H, C/H, M), see :mod:`recurrence.relative`; with them `causal` has no effect, so that only
                `self_bias` hides tokens.
        """
        qkv = self.qkv(x) if qkv is None else qkv
        stacked = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (3, B, H, T, C/H)
        q, k, v = stacked.unbind(0)
        if rotary is not None:
            q, k = rotate(stacked[:2], *rotary).unbind(0)
        if slot is not None:
            k, v = slot(stacked[1:] if rotary is None else torch.stack([k, v]))
        if distance_keys is not None:
            q, scores = self.relative(q, distance_keys, k.size(2))
            self_bias, causal = scores if self_bias is None else scores + self_bias, False
        return self.attend(q, k, v, self_bias, causal)


class CrossAttention(Attention):
    """Attention to a memory; its keys and values are projected once for all passes of a stored block,
    unless passes have signals of their own on them.

    Args:
        memory_width: width of the memory.
        width, heads, bias, dropout: see :class:`Attention`.
    """

    def __init__(self, width: int, heads: int, memory_width: int, bias: bool, dropout: float):
        super().__init__(width, heads, bias, dropout)
        self.q = nn.Linear(width, width, bias=bias)
        self.kv = nn.Linear(memory_width, 2 * width, bias=bias)

    def forward(
        self,
        x: Tensor,
        q: Tensor | None = None,
        *,
        context: Tensor,
        cross_bias: Tensor | None = None,
        record: list | None = None,
    ) -> Tensor:
        """Attends to the memory: (B, T, C).

        Args:
            x: (B, T, C).
            q: (B, T, C), queries, if the caller has projected x.
            context: (B, S, 2 C), keys and values of the memory (B, S, memory width) by `kv`, see
                :meth:`recurrence.block.Block.contexts`.
            cross_bias: added to the scores, broadcastable to (B, H, T, S).
            record: a list to which the weights, averaged over the heads, (B, T, S), are appended.
        """
        q = self.q(x) if q is None else q
        q = q.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = context.unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        if record is not None:
            record.append(attention_weights(q, k, cross_bias).mean(dim=1))
        return self.attend(q, k, v, cross_bias, causal=False)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates each head [a, b], split in halves, to [a cos - b sin, b cos + a sin]: (..., T, D) -> the same.

    cos and sin are rows of :func:`recurrence.position.rotary`, (T, D/2), for heads of width D.

    Differs from RoFormer and LLaMA's own code, which rotate pairs of neighbours; Hugging Face's LLaMA, the one that
    Intra-Layer Recurrence trains, rotates halves.
    """
    a, b = x.chunk(2, dim=-1)
    # Under autocast the angles have a higher dtype.
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """q (B, H, T, C/H), k (B, H, S, C/H), bias broadcastable to (B, H, T, S) -> the weights, (B, H, T, S)."""
    scores = q @ k.transpose(2, 3) / q.size(-1) ** 0.5
    return (scores if bias is None else scores + bias).softmax(dim=-1)


def padding_bias(padding: Tensor, like: Tensor) -> Tensor:
    """-inf for padded keys, else 0: (B, S) bool -> (B, 1, 1, S), with the device of `like` and the dtype of its scores.

    A text of nothing but padding sees every key, because the output of fused kernels is undefined for fully masked
    rows.
    """
    hidden = padding & ~padding.all(dim=-1, keepdim=True)
    return _bias(hidden[:, None, None, :], like)


def causal_bias(length: int, like: Tensor, padding: Tensor | None = None, start: int = 0) -> Tensor:
    """-inf for padded keys and keys after the query, else 0.

    A query that would see nothing (padding before the first token) sees itself, because the output of fused kernels is
    undefined for fully masked rows.

    Args:
        length: L, number of keys.
        like: gives the device, and the dtype of the scores.
        padding: (B, L) bool; None for no padding.
        start: position of the first query.

    Returns:
        (L - start, L); with padding (B, 1, L - start, L).
    """
    ones = torch.ones(length - start, length, dtype=torch.bool, device=like.device)
    hidden = ones.triu(start + 1)
    if padding is not None:
        hidden = hidden | padding[:, None, None, :]
        itself = ones.tril(start).triu_(start)
        hidden = hidden & ~(itself & hidden.all(dim=-1, keepdim=True))
    return _bias(hidden, like)


def product_dtype(like: Tensor) -> torch.dtype:
    """The dtype of products of this tensor: its own, or autocast's."""
    device = like.device.type
    casts = like.dtype != torch.float64 and device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if casts else like.dtype


def _bias(hidden: Tensor, like: Tensor) -> Tensor:
    # In the type of the scores, so that autocast does not cast it in every pass.
    bias = torch.zeros(hidden.shape, dtype=product_dtype(like), device=like.device)
    return bias.masked_fill_(hidden, float("-inf"))
