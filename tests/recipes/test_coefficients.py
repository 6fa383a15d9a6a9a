"""SReT's residual coefficients by their place, from the names in a state dict or in fairseq's log."""

import pytest
import torch

timm = pytest.importorskip("timm")

from coefficient_names import coefficients  # noqa: E402

from tests.support import models, vision  # noqa: E402


def test_coefficients_have_a_stage_a_sublayer_a_place_and_a_role():
    model = vision.fresh("sret_t")
    found = coefficients(model.state_dict())
    assert len(found) == sum(4 * len(loop.blocks) + 2 * loop.passes for loop in model.loops())
    assert set(found.values()) == {1.0}
    with torch.no_grad():
        model.stages[1].loop.blocks[1].residuals[1].branch.fill_(2)
        model.stages[1].loop.own[3].projection.residual.identity.fill_(3)
    found = coefficients(model.state_dict())
    assert found.pop(("stages.1", "FFN", 1, "branch")) == 2
    assert found.pop(("stages.1", "projection", 3, "identity")) == 3
    assert set(found.values()) == {1.0}
    assert coefficients(vision.fresh("ringformer_vit").state_dict()) == {}


def test_a_mixer_mixes_tokens():
    model = timm.create_model("recursive_mixer_s16", depth=1, embed_dim=16, lrc=True)
    found = coefficients(model.state_dict())
    assert {one.sublayer for one in found} == {"token mixing", "FFN"}


def test_coefficients_of_a_log_are_those_of_the_model():
    model = models.build("recursive_iwslt_de_en", *models.tiny_flags("recursive_iwslt_de_en"), "--nll")
    logged = {
        f"{name}.{role}": value
        for name, found in model.coefficients().items()
        for role, value in found.named_parameters()
    }
    assert logged
    assert coefficients(logged) == coefficients(model.state_dict())
    assert {found.sublayer for found in coefficients(logged)} == {
        *("attention", "cross-attention", "FFN", "projection")
    }
