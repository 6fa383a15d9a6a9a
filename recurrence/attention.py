"""Multi-head attention on `scaled_dot_product_attention`, one GEMM for all projections that read the same input.

Source: Vaswani et al. (arXiv:1706.03762), section 3.2. Heads are scaled by 1 / sqrt(head width).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from recurrence.cache import Slot
from recurrence.dropout import dropout
from recurrence.linear import apply
from recurrence.private_torch import HALF_PRECISION, is_transformed, product_dtype, runs_eagerly
from recurrence.relative import RelativeKeys
from recurrence.signal import LevelSignal, project

# Floats in a vector register. On a CPU, PyTorch's softmax takes up to ten times as long for rows that are shorter.
VECTOR = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8


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
        self.heads, self.dropout = heads, dropout
        self.out = nn.Linear(width, width, bias=bias)

    def split(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, H, T, C/H), a view."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, out_term: LevelSignal | None = None
    ) -> Tensor:
        """q (B, H, T, C/H), k and v (B, H, S, C/H), bias broadcastable to (B, H, T, S) -> (B, T, C), after `out`."""
        rate = self.dropout if self.training else 0.0
        if rate and runs_eagerly(q, k, v) and q.dtype == torch.float32 and q.device.type == "cpu":
            weights = attention_weights(q, k, causal_bias(q.size(2), q) if causal else bias)
            y = dropout(weights, rate, self.training) @ v  # torch does not fuse dropout here, and draws masks slower
        else:
            with _kernels(q):
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=rate, is_causal=causal)
        return project(self.out, y.transpose(1, 2).flatten(2), out_term)


def _kernels(q: Tensor) -> AbstractContextManager:
    """Restricts the kernels that attention may use for these queries."""
    if is_transformed():  # the fused kernels have neither forward derivatives nor batching rules
        return sdpa_kernel(SDPBackend.MATH)
    if isinstance(q, Tensor) and q.is_cuda and q.dtype in HALF_PRECISION:
        compiling = torch.compiler.is_compiling()
        return sdpa_kernel(_ALL_BUT_CUDNN) if compiling else _without_cudnn()
    return nullcontext()


# With a mask, cuDNN's kernel can return NaN gradients (pytorch/pytorch#196678), and it builds a plan for each new
# shape, while batches of text rarely repeat one.
_ALL_BUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@contextmanager
def _without_cudnn() -> Iterator[None]:
    # sdpa_kernel, which sets all kernels, takes as long as launching four of them
    allowed = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(allowed)


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
        signal_input: Tensor | None = None,
        self_bias: Tensor | None = None,
        causal: bool = False,
        slot: Slot | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        distance_keys: Tensor | None = None,
        qkv_term: LevelSignal | None = None,
        out_term: LevelSignal | None = None,
    ) -> Tensor:
        """Attends within x or, with a slot, from the tokens of x to those in the slot and to themselves: (B, T, C).

        Args:
            x: (B, T, C).
            signal_input: (B, T, C), what `qkv_term` reads if it is not x.
            self_bias: added to the scores, broadcastable to (B, H, T, S).
            causal: each token only sees itself and earlier tokens. If the slot already holds tokens, this has no
                effect: a single new token sees them all, and several need a bias.
            slot: incremental state of this pass.
            rotary: cosines and sines that rotate queries and keys, see :func:`rotate`.
            distance_keys: (H, C/H, M), see :mod:`recurrence.relative`; `self_bias` must then hide later tokens.
            qkv_term, out_term: what the pass adds to the projections `qkv` and `out`; None for nothing.
        """
        if qkv_term is None:
            stacked = apply(self.qkv, x).unflatten(-1, (3, -1)).permute(2, 0, 1, 3)
        else:
            stacked = qkv_term.project(self.qkv, x, signal_input)
        q, k, v = stacked.unbind(0)
        if rotary is not None:
            q, k = rotate(stacked[:2], self.heads, *rotary).unbind(0)
        if slot is not None:
            k, v = slot(stacked[1:] if rotary is None else torch.stack([k, v]))
            causal = causal and q.size(1) == k.size(1)
        if distance_keys is not None:
            scores = self.relative.scores(q, distance_keys, k.size(1))
            q, causal = self.relative.query(q), False
            self_bias = scores if self_bias is None else scores + self_bias
        return self.attend(self.split(q), self.split(k), self.split(v), self_bias, causal, out_term)


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

    def project(self, memory: Tensor, kv_term: LevelSignal | None = None) -> Tensor:
        """Keys and values of the memory: (B, S, memory width) -> (B, S, 2 C); with a term of the pass."""
        return project(self.kv, memory, kv_term)

    def forward(
        self,
        x: Tensor,
        signal_input: Tensor | None = None,
        *,
        context: Tensor,
        cross_bias: Tensor | None = None,
        record: list | None = None,
        q_term: LevelSignal | None = None,
        out_term: LevelSignal | None = None,
    ) -> Tensor:
        """Attends to the memory: (B, T, C).

        Args:
            x: (B, T, C).
            signal_input: (B, T, C), what `q_term` reads if it is not x.
            context: (B, S, 2 C), see :meth:`project`.
            cross_bias: added to the scores, broadcastable to (B, H, T, S).
            record: a list to which the weights, averaged over the heads, (B, T, S), are appended.
            q_term, out_term: what the pass adds to the projections `q` and `out`; None for nothing.
        """
        queries = self.split(project(self.q, x, q_term, signal_input))
        k, v = (self.split(part) for part in context.chunk(2, dim=-1))
        if record is not None:
            record.append(attention_weights(queries, k, cross_bias).mean(dim=1))
        return self.attend(queries, k, v, cross_bias, causal=False, out_term=out_term)


def rotate(x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates each head [a, b], split in halves, to [a cos - b sin, b cos + a sin]: (..., T, C) -> the same.

    cos and sin are rows of :func:`recurrence.position.rotary`, (T, D/2) or (B, T, D/2), for H heads of width D.

    Differs from the paper, which rotates pairs of neighbours; LLaMA's published code rotates halves, as here.
    """
    a, b = x.unflatten(-1, (heads, 2, -1)).unbind(-2)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    return turned.to(x.dtype)  # under autocast the angles have a higher dtype


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """q (B, H, T, C/H), k (B, H, S, C/H), bias broadcastable to (B, H, T, S) -> the weights, (B, H, T, S)."""
    scores = q @ k.transpose(2, 3) / q.size(-1) ** 0.5
    scores = scores if bias is None else scores + bias
    missing = VECTOR - k.size(2)
    if missing <= 0:
        return scores.softmax(dim=-1)
    return F.pad(scores, (0, missing), value=float("-inf")).softmax(dim=-1)[..., :-missing]


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


def _bias(hidden: Tensor, like: Tensor) -> Tensor:
    # In the type of the scores, so that autocast does not cast it in every pass.
    bias = torch.zeros(hidden.shape, dtype=product_dtype(like), device=like.device)
    return bias.masked_fill_(hidden, float("-inf"))
