"""The operations that RingFormer's paper counts."""

import cost_image
import pytest
import timm
import torch
from torch import nn

from recurrence.signal import LevelSignal
from tests.core.test_count import Small, images

# RingFormer's depth, width, rank, tokens of an image.
P, C, R, N = 12, 768, 48, 197


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "giga"), [("plain_vit", 17.6357), ("owf_vit", 17.6357), ("uit", 17.6373), ("ringformer_vit", 18.3401)]
)
def test_ringformer_flops(name, giga):
    """For one more image in a batch; UiT's tables are added up from their halves once for all of them."""
    model = timm.create_model(name).eval()
    one, two = (cost_image.ringformer_flops(model, images(number=number)).total() for number in (1, 2))
    assert (two - one) / 1e9 == pytest.approx(giga, abs=5e-5)
    assert one - (two - one) == (P * N * C if name == "uit" else 0)


@pytest.mark.slow
def test_the_paper_counts_19_gflops_where_18_suffice():
    """Its rule sees the signals' products of d x d, which are not needed, and their application to one token of 197."""
    published = cost_image.published_ringformer_flops(timm.create_model("ringformer_vit").eval(), images()).total()
    signals = 4 * P
    assert published / 1e9 == pytest.approx(19.0302, abs=5e-5)
    factored = published - signals * (R * C**2 + C**2) + signals * 2 * R * C * N
    assert factored / 1e9 == pytest.approx(18.3401, abs=5e-5)  # as test_ringformer_flops counts it
    done = published + signals * (N - 1) * C**2
    assert done / 1e9 == pytest.approx(24.58, abs=5e-3)  # what that form really computes


def test_every_kind_of_operation_counts():
    products = 60 * 18 + 2 * (2 * 2 * 5 * 4 * 3)  # B 2, T 5, S 4, C 6, H 2
    found = cost_image.ringformer_flops(Small(), torch.randn(2, 5, 6)).total()
    assert found == 5 * 60 + products + 2 * 2 * 5 * 4 + 6 * 60 + 3 * 60


def test_the_published_form_of_a_signal_gives_its_values():
    signal = LevelSignal(3, 6, 6, 2, before=False)
    nn.init.normal_(signal.up), nn.init.normal_(signal.down)
    x = torch.randn(5, 6)
    torch.testing.assert_close(cost_image._multiplied_out(signal, x), signal(x), atol=1e-5, rtol=1e-5)
    plain = timm.create_model("plain_vit", img_size=32, depth=1, embed_dim=24, num_heads=2).eval()
    assert cost_image.published_ringformer_flops(plain, images(32)) == cost_image.ringformer_flops(plain, images(32))
