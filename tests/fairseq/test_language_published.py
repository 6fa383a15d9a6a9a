"""Published language models: recorded results, and Intra-Layer Recurrence against an independent reference."""

from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_plugin.published import SYSTEMS, from_published, to_published
from fairseq_plugin.published.language import POSITION
from recurrence import count
from recurrence.weights.names import to_theirs
from tests.support import language, language_reference, models
from tests.support.golden import golden
from tests.support.recorded import ILR, load


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


@pytest.mark.parametrize("name", ILR)
def test_reference_equals_the_recorded_logits(name):
    """What the architectures below are compared with is itself compared with the published code."""
    file = golden(f"ilr_{name}")
    config = file["meta"]["config"]
    tensors = {key: tensor.double() for key, tensor in file["state_dict"].items()}
    for tokens, expected in zip(file["inputs"]["input_ids"], file["outputs"]["logits"]):
        logits = language_reference.ilr(
            tensors,
            tokens,
            config["num_attention_heads"],
            POSITION[config["positional_encoding"]],
            config["loop_map"],
            config["num_loops"] or 1,
            config["num_hidden_layers"],
            config["use_recurrent_embeds"],
        )
        torch.testing.assert_close(logits.to(expected), expected, rtol=0, atol=1e-4)


# Every architecture

ILR_CASES = [case for case in language.CASES if language.FAMILY[case[0]] == "IntraLayerRecurrence"]


def test_every_architecture_has_a_reference():
    """Those of `recurrent_lm` are in test_recurrent_lm.py; test_convert.py compares the others with fairseq's model."""
    others = {arch for arch, family in language.FAMILY.items() if family == "SharedLanguageModel"}
    assert {arch for arch, _ in ILR_CASES} | others == set(language.ARCHS) - {"recurrent_lm"}


@pytest.mark.parametrize(("arch", "flags"), ILR_CASES)
def test_reference_equality(arch, flags):
    model = models.tiny(arch, *flags)
    looped, loop = "--block-loops" in flags, model.decoder.stack.loop
    weights = to_theirs(model.state_dict(), SYSTEMS["ilr"][1](model, {}))
    for name, parameter in loop.named_parameters():  # which the published names do not include
        if ".relative." in name:
            weights[f"model.layers.{name.removeprefix('blocks.')}"] = parameter
    for row in models.sentences((9, 5), language.SYMBOLS):
        expected = language_reference.ilr(
            weights,
            row,
            heads=2,
            position=flags[flags.index("--position") + 1],
            counts=None if looped else (2, 1, 2),
            loops=2,
            layers=3,
            inject="--inject-embedding" in flags,
        )
        torch.testing.assert_close(model(row[None])[0][0], expected, rtol=0, atol=1e-9)


def test_baevskis_model_is_fairseqs():
    """As many parameters as `transformer_lm_wiki103` of six layers."""
    on, args = language.task(267_744), Namespace(decoder_layers=6, tokens_per_sample=512, max_target_positions=512)
    ARCH_CONFIG_REGISTRY["transformer_lm_wiki103"](args)
    with torch.device("meta"):
        upstream = ARCH_MODEL_REGISTRY["transformer_lm_wiki103"].build_model(args, on)
    assert count.stored(models.on_meta("vanilla_lm", on=on)) == count.stored(upstream) == 120_971_264
