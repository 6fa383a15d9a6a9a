"""The papers' initialisations: the distribution of every tensor of a fresh stack."""

from collections.abc import Callable

import pytest
from torch import Tensor, manual_seed

from recurrence import init
from recurrence.block import Shape
from recurrence.loop import Loop
from recurrence.papers.takase import shared_layers

WIDTH, HIDDEN = 64, 256


def started(initialise: Callable[[Loop], None]) -> dict[str, Tensor]:
    """The tensors of a decoder's block."""
    manual_seed(0)
    loop = shared_layers(Shape(WIDTH, HIDDEN, 4), (0, 0), memory_width=WIDTH)
    initialise(loop)
    return {name.removeprefix("blocks.0."): tensor for name, tensor in loop.named_parameters()}


def expect_uniform(tensor: Tensor, bound: float) -> None:
    assert tensor.abs().max().item() == pytest.approx(bound, rel=0.05)
    assert tensor.std().item() == pytest.approx(bound / 3**0.5, rel=0.15)


def test_fairseqs_is_xaviers_with_three_projections_as_one_matrix():
    tensors = started(init.fairseq_)
    for name, tensor in tensors.items():
        if name.endswith("bias") or name.startswith("norms"):
            assert tensor.eq(name.endswith("weight")).all(), name
    for name in ("self_attn.qkv", "cross_attn.q", "cross_attn.kv"):
        expect_uniform(tensors[f"{name}.weight"], (6 / (4 * WIDTH)) ** 0.5)
    for name in ("self_attn.out", "cross_attn.out"):
        expect_uniform(tensors[f"{name}.weight"], (6 / (2 * WIDTH)) ** 0.5)
    for name in ("ffn.up", "ffn.down"):
        expect_uniform(tensors[f"{name}.weight"], (6 / (WIDTH + HIDDEN)) ** 0.5)


def test_ringformers_is_pytorchs_but_for_the_ffn():
    tensors = started(init.ringformer_)
    for name in ("ffn.up", "ffn.down"):
        assert tensors[f"{name}.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    for name, inputs in (("self_attn.qkv", WIDTH), ("cross_attn.kv", WIDTH), ("ffn.up", WIDTH), ("ffn.down", HIDDEN)):
        expect_uniform(tensors[f"{name}.bias"], inputs**-0.5)
    expect_uniform(tensors["self_attn.qkv.weight"], WIDTH**-0.5)
