"""The distribution of every tensor of a fresh image model."""

import pytest
from torch import nn

from tests.support import vision


def started(name: str) -> nn.Module:
    return vision.fresh(name, embed_dim=64, mlp_ratio=4, num_classes=50)


def test_deits_is_truncated_normal():
    model = started("recursive_deit_tiny")
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert all(layer.weight.std().item() == pytest.approx(0.02, rel=0.1) and not layer.bias.any() for layer in layers)
    assert model.cls_token.std().item() == pytest.approx(0.02, rel=0.5)


def test_ringformers_is_xaviers_in_the_mlp():
    model = started("plain_vit")
    for block in model.loop.blocks:
        for layer in (block.ffn.up, block.ffn.down):
            assert layer.weight.abs().max().item() == pytest.approx((6 / (5 * 64)) ** 0.5, rel=0.05)
            assert layer.bias.std().item() == pytest.approx(1e-6, rel=0.5)
        assert block.self_attn.qkv.weight.abs().max().item() == pytest.approx(64**-0.5, rel=0.05)
    assert not model.cls_token.any()
