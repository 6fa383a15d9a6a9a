"""Attention: weights head by head, what is masked or dropped, the kernels; and the cache."""

import math

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from recurrence.attention import CrossAttention, SelfAttention, _kernels, attention_weights, causal_bias, padding_bias
from recurrence.cache import Cache
from recurrence.parts import dropout
from tests.support import stacks

WIDTH, HEADS = 12, 3


def self_attention() -> SelfAttention:
    torch.manual_seed(0)
    return stacks.randomise(SelfAttention(WIDTH, HEADS, bias=True, dropout=0.0).double(), 0).eval()


def tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, WIDTH, dtype=torch.float64)


def head_by_head(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """(T, C), (S, C), (S, C) of one sentence, (T, S) -> what the heads see (T, C), mean weights (T, S)."""
    parts = [x.chunk(HEADS, dim=1) for x in (q, k, v)]
    scores = [(q @ k.T / math.sqrt(WIDTH // HEADS)).exp() * visible for q, k, _ in zip(*parts)]
    weights = [each / each.sum(1, keepdim=True) for each in scores]
    return torch.cat([share @ v for share, v in zip(weights, parts[2])], dim=1), sum(weights) / HEADS


def cross_attention(memory_width: int) -> CrossAttention:
    torch.manual_seed(0)
    return stacks.randomise(CrossAttention(WIDTH, HEADS, memory_width, bias=True, dropout=0.0).double(), 0).eval()


def test_cross_attention_and_its_weights():
    attention = cross_attention(memory_width=7)
    x, memory = tokens(2, 3), torch.randn(2, 4, 7, dtype=torch.float64)
    padding = torch.tensor([[0, 0, 0, 0], [1, 1, 0, 0]]).bool()
    projected, mask = attention.project(memory), padding_bias(padding, x)
    for b in range(2):
        k, v = attention.kv(memory[b]).chunk(2, dim=1)
        y, weights = head_by_head(attention.q(x[b]), k, v, ~padding[b].expand(3, 4))
        record = []
        found = attention(x, context=projected, cross_bias=mask, record=record)
        torch.testing.assert_close(found[b], attention.out(y))
        torch.testing.assert_close(record[0][b], weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_that_sees_nothing_is_finite(dtype):
    attention = self_attention().to(dtype)
    x = tokens(2, 4).to(dtype).requires_grad_()
    padding = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    y = attention(x, x, self_bias=padding_bias(padding, x) + causal_bias(4, x))
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_memory_that_is_all_padding_is_finite(dtype, rate):
    attention, x = cross_attention(4).to(dtype).train(), tokens(2, 3).to(dtype)
    attention.dropout, memory = rate, tokens(2, 5)[..., :4].to(dtype)
    padding = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]]).bool()
    y = attention(x, context=attention.project(memory), cross_bias=padding_bias(padding, x))
    y.sum().backward()
    assert y.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("vector", [0, 16])  # scores are filled up to this length
def test_dropped_attention_weights_are_zero(causal, vector, monkeypatch):
    monkeypatch.setattr("recurrence.attention.VECTOR", vector)
    attention, x = self_attention().float(), tokens(2, 5).float().requires_grad_()
    bias = None if causal else padding_bias(torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]).bool(), x)
    plain = attention(x, self_bias=bias, causal=causal)
    attention.dropout = 0.5
    assert torch.equal(attention(x, self_bias=bias, causal=causal), plain), "only in training"
    attention.train().dropout = 1e-6  # rounded to nothing: every weight stays
    found = attention(x, self_bias=bias, causal=causal)
    torch.testing.assert_close(found, plain)
    (ours,), (wanted,) = (torch.autograd.grad(y.square().sum(), x) for y in (found, plain))
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)
    attention.dropout = 0.25
    torch.manual_seed(1)
    found = attention(x, self_bias=bias, causal=causal)
    torch.manual_seed(1)
    q, k, v = (attention.split(part) for part in attention.qkv(x).chunk(3, dim=-1))
    left = dropout(attention_weights(q, k, causal_bias(5, x) if causal else bias), 0.25, training=True)
    assert left.eq(0).sum() > (20 if causal else 0)
    torch.testing.assert_close(found, attention.out((left @ v).transpose(1, 2).flatten(2)))


# Cache


def test_a_cache_rejects_what_wants_gradients():
    with pytest.raises(RuntimeError, match="torch.no_grad"):
        Cache(1).write(0, torch.zeros(2, 2, 1, 4, requires_grad=True))


def test_no_mask_row_is_empty_and_other_rows_are_unchanged():
    x, padding = tokens(3, 5), torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 1, 1], [1, 1, 1, 1, 1]]).bool()
    whole = causal_bias(5, x, padding)
    assert whole.isfinite().any(-1).all()
    plain = causal_bias(5, x).expand_as(whole).masked_fill(padding[:, None, None], -torch.inf)
    sees = plain.isfinite().any(-1)
    assert torch.equal(whole[sees], plain[sees])
    itself = torch.eye(5, dtype=torch.bool).expand(3, 1, 5, 5)
    assert torch.equal(whole.isfinite()[~sees], itself[~sees])
    assert torch.equal(causal_bias(5, x, padding, start=3), whole[:, :, 3:])


@pytest.mark.parametrize("autocast", [False, True])
def test_a_bias_has_the_type_of_the_scores(autocast):
    x, padding = tokens(1, 3).float(), torch.zeros(1, 3).bool()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = {bias.dtype for bias in (padding_bias(padding, x), causal_bias(3, x), causal_bias(3, x, padding))}
        assert padding_bias(padding, x.double()).dtype == torch.float64
    assert found == {torch.bfloat16 if autocast else torch.float32}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_cudnn_is_no_choice_in_half_precision(dtype):
    """On tensors that only say that they lie on a GPU."""
    allowed, before = torch.backends.cuda, torch.backends.cuda.cudnn_sdp_enabled()
    with FakeTensorMode():
        queries = torch.empty(1, 2, 3, 4, device="cuda", dtype=dtype)
    with _kernels(queries):
        assert allowed.cudnn_sdp_enabled() == (before and dtype == torch.float32)
        assert allowed.flash_sdp_enabled()
        assert allowed.mem_efficient_sdp_enabled()
        assert allowed.math_sdp_enabled()
    assert allowed.cudnn_sdp_enabled() == before


def test_a_cache_never_waits_for_a_gpu():
    """A value that is read on the host has no value in tensors that only say that they lie on a GPU."""
    with FakeTensorMode():
        cache, keys = Cache(2), torch.empty(4, 1, WIDTH, device="cuda")
        for _ in range(3):
            for slot in cache.slots():
                slot(torch.stack([keys, keys]))
            cache.reorder(torch.arange(4, device="cuda"))
