"""Published language models: recorded results, and every architecture against an independent reference."""

import pytest
import torch
import torch.nn.functional as F

from fairseq_plugin.published import FIXED, from_published, to_published
from fairseq_plugin.published.language import POSITION, SYSTEMS
from recurrence import count
from tests.support import language, language_reference, models

ILR = [f"{position}_map{reuse}" for position in POSITION.values() for reuse in ("111", "211", "123")]
ILR += [f"{position}_block2" for position in POSITION.values()]
ILR += ["none_map211_inject", "rope_block3_noinject", "alibi_heads6_map211"]
RECORDED = {f"ilr_{name.replace('none', 'nope')}": "ilr" for name in ILR}
every_recorded_model = pytest.mark.parametrize("name", RECORDED)


def load(name: str, file: dict, **changes: torch.Tensor):
    return from_published(RECORDED[name], {**file["state_dict"], **changes}, file["meta"]["config"])


@every_recorded_model
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_recorded_logits(name, dtype):
    file = models.golden(name)
    expected, model = file["outputs"]["logits"], load(name, file)
    assert not model.training
    assert next(model.parameters()).dtype == expected.dtype
    logits, _ = model.to(dtype)(file["inputs"]["input_ids"])
    torch.testing.assert_close(logits.to(expected), expected, rtol=0, atol=1e-4)


@every_recorded_model
def test_recorded_gradients(name):
    file = models.golden(name)
    model, tokens = load(name, file), file["inputs"]["input_ids"]
    loss = F.cross_entropy(model(tokens)[0][:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    assert loss.item() == pytest.approx(file["loss"], abs=1e-5)
    for parameter in model.parameters():
        parameter.data = parameter.grad
    gradients = to_published(RECORDED[name], model, file["meta"]["config"])
    assert set(file["grads"]) <= set(gradients)
    for key, expected in file["grads"].items():
        torch.testing.assert_close(gradients[key], expected, rtol=0, atol=5e-5, msg=key)


@every_recorded_model
def test_inverse_gives_the_published_weights_back(name):
    file = models.golden(name)
    back = to_published(RECORDED[name], load(name, file), file["meta"]["config"])
    expected = {key: tensor for key, tensor in file["state_dict"].items() if not FIXED.fullmatch(key)}
    assert back.keys() == expected.keys()
    assert all(torch.equal(back[key], expected[key]) for key in expected)


@every_recorded_model
def test_no_key_is_dropped_or_made_up(name):
    file = models.golden(name)
    with pytest.raises(ValueError, match="model.surplus.weight: published key that nothing is mapped to"):
        load(name, file, **{"model.surplus.weight": torch.zeros(1)})
    key = next(key for key in file["state_dict"] if not FIXED.fullmatch(key))
    del file["state_dict"][key]
    with pytest.raises(ValueError, match=f"{key}: published key is missing"):
        load(name, file)


def test_tied_matrices_that_differ_are_refused():
    file = models.golden("ilr_rope_map211")
    with pytest.raises(ValueError, match="lm_head.weight: differs from the tensor that it shares"):
        load("ilr_rope_map211", file, **{"lm_head.weight": file["state_dict"]["lm_head.weight"] + 1})


def test_another_base_of_the_rotation_is_refused():
    file = models.golden("ilr_rope_map211")
    with pytest.raises(ValueError, match="rope_theta=500000.0: must be 10000"):
        from_published("ilr", file["state_dict"], {**file["meta"]["config"], "rope_theta": 500000.0})


@every_recorded_model
def test_reference_equals_the_recorded_logits(name):
    """What the architectures below are compared with is itself compared with the published code."""
    file = models.golden(name)
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


def test_every_system_and_every_architecture_has_a_reference():
    """Those of `recurrent_lm` are in tests/fairseq/test_recurrent_lm.py."""
    assert set(SYSTEMS) == {*RECORDED.values(), "kausik"}
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
def test_equality_with_the_hosts_model(arch, flags, left_pad):
    """fairseq's language model with a layer for every depth, each a copy of the one that our order names."""
    task, model = language.task(), models.tiny(arch, *flags)
    host = language_reference.host_model(models.options(arch, *language.tiny_flags(arch, *flags)), task)
    language_reference.copy_into_host(model, host)
    tokens = language.texts(left_pad=left_pad)
    keep = language.kept(tokens)
    found, expected = (one.get_normalized_probs(one(tokens), log_probs=True)[keep] for one in (model, host))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)  # fairseq computes some of it in float32
    torch.testing.assert_close(found.double(), models.log_probabilities(model, tokens)[keep], rtol=0, atol=1e-5)


def test_baevskis_model_is_the_hosts():
    """As many parameters as `transformer_lm_wiki103` of six layers."""
    on = language.task(267_744)
    model = models.on_meta("vanilla_lm", on=on)
    with torch.device("meta"):
        host = language_reference.host_model(models.options("vanilla_lm"), on)
    assert count.stored(model) == count.stored(host) == 120_971_264
