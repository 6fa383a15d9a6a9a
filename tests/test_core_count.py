"""Counts against numbers worked out by hand."""

import pytest
import torch
from torch import nn

from recurrence import count
from recurrence.loop import Loop
from tests import language


def loop(order):
    blocks = [nn.Linear(3, 3), nn.Linear(3, 3, bias=False)]  # 12 and 9 parameters
    return Loop(blocks, order, own=[nn.LayerNorm(3) for _ in order])  # 6 a pass


def test_counts():
    stack = loop((0, 1, 1, 0, 0))
    model = nn.ModuleDict({"stack": stack, "other": loop((0, 1)), "head": nn.Linear(3, 2)})
    assert count.stored(stack) == 12 + 9 + 5 * 6
    assert count.unshared(stack) == 3 * 12 + 2 * 9 + 5 * 6
    assert count.passes(stack) == 5
    assert count.stored(model) == 51 + 33 + 8
    assert count.unshared(model) == 84 + 33 + 8
    assert count.passes(model) == 7


def test_shared_and_frozen_parameters():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    assert count.stored(nn.ModuleList([first, second])) == 16 + 4 + 4
    first.bias.requires_grad_(False)
    assert count.stored(nn.ModuleList([first, second])) == 16 + 4


def test_operations_of_the_papers_small_model():
    """2.23M multiply-accumulates a token in its forward pass, full attention matrices included; twice that backward."""
    model = language.on_meta("ilr_small", "--reuse-map", "1,1,1,1", on=language.task(1024))
    decoder = model.decoder
    tokens = torch.zeros(1, 1024, dtype=torch.long, device="meta")

    def forward():
        return decoder.output_layer(decoder.stack(decoder.inputs(tokens, None)[0]))

    expected = 4 * (4 * 128**2 + 3 * 128 * 512 + 2 * 1024 * 128) + 1024 * 128
    assert count.flops(forward) == 2 * 1024 * expected
    assert round(expected / 1e6, 2) == 2.23
    both = count.flops(lambda: forward().float().logsumexp(-1).sum().backward())
    assert both / count.flops(forward) == pytest.approx(3, abs=0.1)
