"""Published language models: recorded results, and every architecture against an independent reference."""

import pytest
import torch

from fairseq_plugin.published import from_published, to_published
from fairseq_plugin.published.language import POSITION
from recurrence import count
from tests.fairseq.test_published import ILR
from tests.support import language, language_reference, models


def load(name: str, file: dict, **changes: torch.Tensor):
    return from_published("ilr", {**file["state_dict"], **changes}, file["meta"]["config"])


def test_tied_matrices_that_differ_are_refused():
    file = models.golden("ilr_rope_map211")
    with pytest.raises(ValueError, match="lm_head.weight: differs from the tensor that it shares"):
        load("ilr_rope_map211", file, **{"lm_head.weight": file["state_dict"]["lm_head.weight"] + 1})


def test_another_base_of_the_rotation_is_refused():
    file = models.golden("ilr_rope_map211")
    with pytest.raises(ValueError, match="rope_theta=500000.0: must be 10000"):
        from_published("ilr", file["state_dict"], {**file["meta"]["config"], "rope_theta": 500000.0})


@pytest.mark.parametrize("name", ILR)
def test_reference_equals_the_recorded_logits(name):
    """What the architectures below are compared with is itself compared with the published code."""
    file = models.golden(f"ilr_{name}")
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
SHARED_CASES = [case for case in language.CASES if language.FAMILY[case[0]] == "SharedLanguageModel"]


def test_every_architecture_has_a_reference():
    """Those of `recurrent_lm` are in tests/fairseq/test_recurrent_lm.py."""
    assert {arch for arch, _ in ILR_CASES + SHARED_CASES} == set(language.ARCHS) - {"recurrent_lm"}


@pytest.mark.parametrize(("arch", "flags"), ILR_CASES)
def test_reference_equality(arch, flags):
    model = models.tiny(arch, *flags)
    looped = "--block-loops" in flags
    for row in models.sentences((9, 5), language.SYMBOLS):
        expected = language_reference.ilr(
            to_published("ilr", model, {}),
            row,
            heads=2,
            position=flags[flags.index("--position") + 1],
            counts=None if looped else (2, 1, 2),
            loops=2,
            layers=3,
            inject="--inject-embedding" in flags,
        )
        torch.testing.assert_close(model(row[None])[0][0], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("arch", "flags"), SHARED_CASES)
@pytest.mark.parametrize("left_pad", [False, True])
def test_equality_with_fairseqs_model(arch, flags, left_pad):
    """fairseq's language model with a layer for every depth, each a copy of the one that our order names."""
    task, model = language.task(), models.tiny(arch, *flags)
    upstream = language_reference.fairseq_model(models.options(arch, *language.tiny_flags(arch, *flags)), task)
    language_reference.copy_into_fairseq(model, upstream)
    tokens = language.texts(left_pad=left_pad)
    keep = language.kept(tokens)
    found, expected = (one.get_normalized_probs(one(tokens), log_probs=True)[keep] for one in (model, upstream))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)  # fairseq computes some of it in float32
    torch.testing.assert_close(found.double(), models.log_probabilities(model, tokens)[keep], rtol=0, atol=1e-5)


def test_baevskis_model_is_fairseqs():
    """As many parameters as `transformer_lm_wiki103` of six layers."""
    on = language.task(267_744)
    model = models.on_meta("vanilla_lm", on=on)
    with torch.device("meta"):
        upstream = language_reference.fairseq_model(models.options("vanilla_lm"), on)
    assert count.stored(model) == count.stored(upstream) == 120_971_264
