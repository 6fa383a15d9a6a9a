"""Attention: weights head by head, what is masked or dropped, the kernels; and the cache."""

import math

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from recurrence.attention import CrossAttention, SelfAttention, attention_weights, causal_bias, padding_bias
from recurrence.cache import Cache
from recurrence.private_torch import attention_kernels
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
    context, mask = attention.kv(memory), padding_bias(padding, x)
    for b in range(2):
        k, v = attention.kv(memory[b]).chunk(2, dim=1)
        y, weights = head_by_head(attention.q(x[b]), k, v, ~padding[b].expand(3, 4))
        record = []
        found = attention(x, context=context, cross_bias=mask, record=record)
        torch.testing.assert_close(found[b], attention.out(y))
        torch.testing.assert_close(record[0][b], weights)


def test_what_the_caller_has_projected_takes_the_place_of_the_projection():
    attention, cross, x = self_attention(), cross_attention(7), tokens(2, 5)
    projected = tokens(2, 5, 3).flatten(2)
    for b in range(2):
        y, _ = head_by_head(*projected[b].chunk(3, dim=1), torch.ones(5, 5, dtype=torch.bool))
        torch.testing.assert_close(attention(x, projected)[b], attention.out(y))
    q, context = tokens(2, 5), tokens(2, 4, 2).flatten(2)
    for b in range(2):
        y, _ = head_by_head(q[b], *context[b].chunk(2, dim=1), torch.ones(5, 4, dtype=torch.bool))
        torch.testing.assert_close(cross(x, q, context=context)[b], cross.out(y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_that_sees_nothing_is_finite(dtype):
    attention = self_attention().to(dtype)
    x = tokens(2, 4).to(dtype).requires_grad_()
    padding = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    y = attention(x, self_bias=padding_bias(padding, x) + causal_bias(4, x))
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_memory_that_is_all_padding_is_finite(dtype, rate):
    attention, x = cross_attention(4).to(dtype).train(), tokens(2, 3).to(dtype)
    attention.dropout.p, memory = rate, tokens(2, 5)[..., :4].to(dtype)
    padding = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]]).bool()
    y = attention(x, context=attention.kv(memory), cross_bias=padding_bias(padding, x))
    y.sum().backward()
    assert y.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())


@pytest.mark.parametrize("causal", [False, True])
def test_dropped_attention_weights_are_zero(causal):
    attention, x = self_attention().float(), tokens(2, 5).float().requires_grad_()
    bias = None if causal else padding_bias(torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]).bool(), x)
    plain = attention(x, self_bias=bias, causal=causal)
    attention.dropout.p = 0.5
    assert torch.equal(attention(x, self_bias=bias, causal=causal), plain), "only in training"
    attention.train().dropout.p = 1e-6  # every weight stays
    found = attention(x, self_bias=bias, causal=causal)
    torch.testing.assert_close(found, plain)
    (ours,), (wanted,) = (torch.autograd.grad(y.square().sum(), x) for y in (found, plain))
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)
    attention.dropout.p = 0.25
    torch.manual_seed(1)
    found = attention(x, self_bias=bias, causal=causal)
    torch.manual_seed(1)
    q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in attention.qkv(x).chunk(3, dim=-1))
    left = attention.dropout(attention_weights(q, k, causal_bias(5, x) if causal else bias))
    assert left.eq(0).sum() > (60 if causal else 30)  # those that the mask hides
    torch.testing.assert_close(found, attention.out((left @ v).transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_each_type_drops_its_weights_at_the_rate(dtype, causal):
    """By the output: values of 1 sum the weights that are left, 1 on average."""
    attention, generator = self_attention().to(dtype).train(), torch.manual_seed(0)
    attention.dropout.p = 0.25
    q, k = (torch.randn(64, HEADS, 40, 4, generator=generator).to(dtype) for _ in range(2))
    with torch.no_grad():
        attention.out.weight.copy_(torch.eye(WIDTH))
        attention.out.bias.zero_()
    sums = attention.attend(q, k, torch.ones_like(k), None, causal).double()
    assert sums.mean().item() == pytest.approx(1, abs=0.01)
    first = sums[:, 0]  # under a causal mask it has one weight, which is 0 or 1 / 0.75
    if causal:
        assert sorted(first.unique().tolist()) == pytest.approx([0, 4 / 3], rel=0.01)
        assert first.eq(0).double().mean().item() == pytest.approx(0.25, abs=0.1)
    else:
        assert first.std() > 0.05
    assert torch.equal(
        attention.eval().attend(q, k, torch.ones_like(k), None, causal).round(decimals=1), torch.ones_like(sums)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_rate_of_1_leaves_the_bias_of_the_output_and_finite_gradients(dtype):
    attention, x = self_attention().to(dtype).train(), tokens(2, 5).to(dtype).requires_grad_()
    attention.dropout.p = 1.0
    y = attention(x, causal=True)
    assert torch.equal(y, attention.out.bias.expand_as(y))
    y.square().sum().backward()
    assert not x.grad.any()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())


def test_dropout_acts_where_only_its_module_is_in_training():
    """As in Monte-Carlo dropout."""
    attention, x = self_attention().float(), tokens(2, 5).float()
    attention.dropout.p = 0.5
    plain = attention(x)
    assert torch.equal(attention(x), plain)
    attention.dropout.train()
    assert not torch.allclose(attention(x), attention(x))
    attention.train().dropout.eval()
    torch.testing.assert_close(attention(x), plain)


@pytest.mark.parametrize("causal", [False, True])
def test_under_transforms_it_is_the_same_attention(causal):
    attention, x, tangent = self_attention(), tokens(3, 5), tokens(3, 5)

    def call(x):
        return attention(x, causal=causal)

    with sdpa_kernel(SDPBackend.MATH):  # the fused kernel has no second derivative
        expected = torch.autograd.functional.jvp(call, x, tangent)
        curvature = torch.autograd.functional.hessian(lambda row: call(row[None]).sum(), x[0])
    torch.testing.assert_close(torch.func.jvp(call, (x,), (tangent,)), expected)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(call(forward_ad.make_dual(x, tangent)))
        torch.testing.assert_close((dual.primal, dual.tangent), expected)
        torch.testing.assert_close(call(x), expected[0])  # without a tangent
    torch.testing.assert_close(torch.func.vmap(lambda row: call(row[None])[0])(x), expected[0])
    slopes = torch.func.vmap(torch.func.grad(lambda row: call(row[None]).square().sum()))(x)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(slopes, torch.autograd.grad(call(leaf).square().sum(), leaf)[0])
    torch.testing.assert_close(torch.func.hessian(lambda row: call(row[None]).sum())(x[0]), curvature)


def test_only_the_memory_may_have_a_tangent():
    attention, x = cross_attention(memory_width=7), tokens(2, 3)
    memory, tangent = torch.randn(2, 2, 4, 7, dtype=torch.float64)

    def call(memory):
        return attention(x, context=attention.kv(memory))

    expected = torch.func.jvp(call, (memory,), (tangent,))
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(call(forward_ad.make_dual(memory, tangent)))
        torch.testing.assert_close((dual.primal, dual.tangent), expected)


def test_dropout_under_vmap_differs_between_samples():
    attention, x = self_attention().float().train(), tokens(1, 5).float()
    attention.dropout.p = 0.5
    found = torch.func.vmap(lambda row: attention(row[None])[0], randomness="different")(x.expand(2, -1, -1))
    assert not torch.equal(found[0], found[1])
    slopes = torch.func.grad(lambda x: attention(x).sum())(x)
    assert slopes.isfinite().all()
    assert slopes.any()


class Causal(nn.Module):
    """Attention of one argument, as torch.fx traces it."""

    def __init__(self, attention: SelfAttention):
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, causal=True)


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_graphs_compute_the_same_attention(rate):
    attention, x = self_attention().float().train(), tokens(2, 5).float()
    attention.dropout.p, causal, found = rate, Causal(attention), []
    torch._dynamo.reset()
    graphs = [torch.compile(causal, backend="eager", fullgraph=True), torch.fx.symbolic_trace(causal)]
    if not rate:
        graphs.append(torch.export.export(causal, (x,)).module())
    for call in (causal, *graphs):
        torch.manual_seed(1)
        found.append(call(x))
    for y in found[1:]:
        assert y.isfinite().all()
        assert torch.allclose(y, found[0], atol=1e-5) == (rate == 0), "in graphs, torch draws what is dropped"
    targets = [node.target for node in graphs[1].graph.nodes]
    assert F.scaled_dot_product_attention in targets
    torch._dynamo.reset()


# Cache


def test_a_cache_rejects_what_wants_gradients():
    with pytest.raises(RuntimeError, match="torch.no_grad"):
        Cache(1).write(0, torch.zeros(2, 2, 2, 1, 4, requires_grad=True))


def test_a_cache_gives_each_pass_its_own_tokens_in_the_order_of_the_batch():
    cache, kept = Cache(2), [torch.zeros(2, 3, 2, 0, 4), torch.zeros(2, 3, 2, 0, 4)]
    for step, count in enumerate((3, 1, 40, 1)):
        for index, slot in enumerate(cache.slots):
            new = torch.randn(2, 3, 2, count, 4)
            kept[index] = torch.cat([kept[index], new], dim=3)
            assert torch.equal(torch.stack(slot(new)), kept[index])
        cache.length += count
        order = torch.tensor([[0, 1, 2], [2, 0, 0], [1, 1, 2], [0, 2, 1]][step])
        cache.reorder(order)
        kept = [each[:, order] for each in kept]


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
    with attention_kernels(queries):
        assert allowed.cudnn_sdp_enabled() == (before and dtype == torch.float32)
        assert allowed.flash_sdp_enabled()
        assert allowed.mem_efficient_sdp_enabled()
        assert allowed.math_sdp_enabled()
    assert allowed.cudnn_sdp_enabled() == before


def test_a_cache_never_waits_for_a_gpu():
    """A value that is read on the host has no value in tensors that only say that they lie on a GPU."""
    with FakeTensorMode():
        cache, keys = Cache(2), torch.empty(2, 4, HEADS, 1, WIDTH // HEADS, device="cuda")
        for _ in range(3):
            for slot in cache.slots:
                slot(keys)
            cache.length += 1
            cache.reorder(torch.arange(4, device="cuda"))
