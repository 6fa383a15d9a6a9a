"""Parameter and operation counts, compared with counts by hand and with the papers'."""

import sys

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

import timm_plugin  # noqa: F401  registers our models
from recurrence import count
from recurrence.block import Shape
from recurrence.papers.kausik import RecurrentBlock


def test_shared_and_frozen_parameters():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    assert count.stored(nn.ModuleList([first, second])) == 16 + 4 + 4
    first.bias.requires_grad_(False)
    assert count.stored(nn.ModuleList([first, second])) == 16 + 4


class Small(nn.Module):
    """One of each kind of operation."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(6), nn.Linear(6, 18)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k[:, :, 1:], v[:, :, 1:])
        return (F.gelu(x) - y.transpose(1, 2).flatten(2)) / 2 + x


def test_operations():
    products = 60 * 18 + 2 * (2 * 2 * 5 * 4 * 3)  # B 2, T 5, S 4, C 6, H 2
    assert count.macs(Small(), torch.randn(2, 5, 6)) == 5 * 60 + products


def test_products_are_those_that_run():
    """Of a scan, the queries, keys and values of the input once and not at every step; nothing is left behind."""
    length, width = 9, 8
    block, x = RecurrentBlock(Shape(width, 2 * width, 2)), torch.randn(1, length, width)
    square, ffn = width * width, 4 * width * width
    single = 2 * square + ffn  # a single token's value, its output and the FFN: for the first state and all outputs
    step = 3 * square + 3 * square + ffn  # the input's projections, the state's key and value, the output
    assert count.flops(lambda: block(x)) // 2 == (1 + length) * single + (length - 1) * step
    assert not nn.modules.module._global_forward_pre_hooks


def test_a_missing_fvcore_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fvcore.nn", None)
    with pytest.raises(ModuleNotFoundError, match="pip install fvcore"):
        count.macs(nn.Linear(2, 2), torch.zeros(1, 2))


def images(size=224, number=1):
    return torch.zeros(number, 3, size, size)


@pytest.mark.parametrize(
    ("name", "size", "options", "giga"),
    [
        ("sret_t", 224, {}, 1.12),
        ("sret_tl", 224, {}, 1.17),
        ("sret_s", 224, {}, 4.19),
        ("sret_t_global", 224, {}, 1.375),
        ("sret_tl_global", 224, {}, 1.43),
        ("sret_s_global", 224, {}, 4.69),
        ("sret_t", 384, {}, 4.25),
        ("sret_t_global", 384, {}, 6.44),
        ("sret_tl", 384, {}, 4.40),
        ("sret_tl_global", 384, {}, 6.59),
        ("sret_s_global", 384, {}, 18.50),
        ("sret_s_global", 512, {}, 42.77),
        ("sret_tl", 224, dict(groups=((16, 1), (14, 1), (1, 1))), 1.23),
    ],
)
def test_macs_of_sret(name, size, options, giga):
    """As published, up to rounding: the stem's batch norms count as well."""
    model = timm.create_model(name, img_size=size, **options).eval()
    assert count.macs(model, images(size)) / 1e9 == pytest.approx(giga, abs=0.0051)
