"""Published language models: what their conversion rejects; their recorded results are in tests/test_published.py."""

import pytest

from fairseq_plugin.published import from_published, to_published
from tests.support import models
from tests.support.golden import golden
from tests.support.recorded import load


def test_tied_matrices_that_differ_are_rejected():
    file = golden("ilr_rope_map211")
    with pytest.raises(ValueError, match="lm_head.weight: differs from the tensor that it shares"):
        load("ilr_rope_map211", file, **{"lm_head.weight": file["state_dict"]["lm_head.weight"] + 1})


def test_another_base_of_the_rotation_is_rejected():
    file = golden("ilr_rope_map211")
    with pytest.raises(ValueError, match="rope_theta=500000.0: must be 10000"):
        from_published("ilr", file["state_dict"], {**file["meta"]["config"], "rope_theta": 500000.0})


def test_relative_positions_that_the_published_code_lacks_are_rejected():
    model = models.tiny("ilr_small", "--position", "relative")
    message = (
        r"^decoder.stack.loop.blocks.0.self_attn.relative.content_bias: .* ilr has no such parameter \(9 in all\)$"
    )
    with pytest.raises(ValueError, match=message):
        to_published("ilr", model, {})
