"""Published language models: what their conversion rejects; their recorded results are in tests/test_published.py."""

from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_plugin.published import from_published, to_published
from recurrence import count
from tests.support import language, models
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


def test_baevskis_model_is_fairseqs():
    """As many parameters as `transformer_lm_wiki103` of six layers."""
    on, args = language.task(267_744), Namespace(decoder_layers=6, tokens_per_sample=512, max_target_positions=512)
    ARCH_CONFIG_REGISTRY["transformer_lm_wiki103"](args)
    with torch.device("meta"):
        upstream = ARCH_MODEL_REGISTRY["transformer_lm_wiki103"].build_model(args, on)
    assert count.stored(models.on_meta("vanilla_lm", on=on)) == count.stored(upstream) == 120_971_264
